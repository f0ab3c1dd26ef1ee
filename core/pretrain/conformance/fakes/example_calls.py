"""Example arguments of one call of a kernel, for every operation but the collectives and the optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from pretrain.conformance.comparing.comparison import random
from pretrain.conformance.kernels.attention_inputs import inputs
from pretrain.conformance.kernels.masks import example_mask
from pretrain.conformance.kernels.rotary import rotations

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.plugins import requests
    from pretrain.plugins.requests import Request

    Asked = TypeVar("Asked", bound=Request)

FEATURES = {"in": 24, "out": 40}
"""Sizes of a linear, about which its request says nothing."""


@dataclass(frozen=True, kw_only=True)
class ExampleCall:
    """Arguments of one call.

    Attributes:
        inputs: tensors by the names of the kernel's arguments, which get gradients.
        constants: others, which get none.
        main_grad_dtype: of the tensor `main_grad` that the weight has, None where it has none.
    """

    inputs: dict[str, Tensor]
    constants: dict[str, Tensor | None] = field(default_factory=dict)
    main_grad_dtype: torch.dtype | None = None

    def placed(self, place: Callable[[Tensor], Tensor]) -> ExampleCall:
        """Return the same with every tensor put onto a device, or made a fake one."""
        constants = {name: x if x is None else place(x) for name, x in self.constants.items()}
        return replace(self, inputs={name: place(x) for name, x in self.inputs.items()}, constants=constants)


def example_call(request: Request, tokens: int) -> ExampleCall:
    """Return arguments for a request, of micro batches of 2; `tokens`: of a sequence, where the request has no length.

    Values are random, on the CPU.
    """
    return _MAKERS[request.operation](request, tokens)


def longer(request: Asked, length: int) -> Asked:
    """Return a request for sequences of that length, where it says a length."""
    names = {"seq_length", "queries", "keys"} & {part.name for part in fields(request)}
    changed: dict[str, Any] = dict.fromkeys(names, length)
    return replace(request, **changed)


def _attention(request: requests.AttentionRequest, _: int) -> ExampleCall:
    mask = example_mask(request.mask, request.micro_batch_size, request.seq_length, request.seq_length)
    return ExampleCall(inputs=inputs(request), constants={"mask": mask})


def _softmax(request: requests.SoftmaxRequest, _: int) -> ExampleCall:
    scores = random(2, request.heads, request.queries, request.keys, dtype=request.dtype)
    mask = example_mask(request.mask, 2, request.queries, request.keys)
    return ExampleCall(inputs={"scores": scores}, constants={"mask": mask})


def _norm(request: requests.NormRequest, tokens: int) -> ExampleCall:
    names = ("weight", "bias") if request.kind == "LayerNorm" else ("weight",)
    weights = {name: random(request.hidden_size, dtype=request.weight_dtype) for name in names}
    return ExampleCall(inputs={"x": random(tokens, 2, request.hidden_size, dtype=request.dtype), **weights})


def _rotary(request: requests.RotaryRequest, _: int) -> ExampleCall:
    x = random(request.seq_length, 2, request.heads, request.head_size, dtype=request.dtype)
    cos, sin = rotations(request.seq_length, request.rotary_size)
    return ExampleCall(inputs={"x": x}, constants={"cos": cos, "sin": sin})


def _activation(request: requests.ActivationRequest, tokens: int) -> ExampleCall:
    columns = request.features * (2 if request.kind == "swiglu" else 1)
    bias = {"bias": random(columns, dtype=request.dtype)} if request.has_bias else {}
    return ExampleCall(inputs={"x": random(tokens, 2, columns, dtype=request.dtype), **bias})


def _bias_dropout_add(request: requests.BiasDropoutAddRequest, tokens: int) -> ExampleCall:
    x, residual = (random(tokens, 2, request.hidden_size, dtype=request.dtype, seed=seed) for seed in (0, 1))
    if not request.has_bias:
        return ExampleCall(inputs={"x": x, "residual": residual}, constants={"bias": None})
    return ExampleCall(inputs={"x": x, "bias": random(request.hidden_size, dtype=request.dtype), "residual": residual})


def _cross_entropy(request: requests.CrossEntropyRequest, _: int) -> ExampleCall:
    shape = (request.seq_length, request.micro_batch_size)
    logits = random(*shape, request.padded_vocab_size, dtype=request.dtype)
    return ExampleCall(inputs={"logits": logits}, constants={"target": torch.zeros(shape, dtype=torch.int64)})


def _linear(request: requests.LinearRequest, tokens: int) -> ExampleCall:
    given = {
        "x": random(tokens, 2, FEATURES["in"], dtype=request.dtype),
        "weight": random(FEATURES["out"], FEATURES["in"], dtype=request.dtype),
        "bias": random(FEATURES["out"], dtype=request.dtype),
    }
    return ExampleCall(inputs=given, main_grad_dtype=request.main_grad_dtype)


_MAKERS: dict[str, Callable[[Any, int], ExampleCall]] = {
    "activation": _activation,
    "attention": _attention,
    "bias_dropout_add": _bias_dropout_add,
    "cross_entropy": _cross_entropy,
    "linear": _linear,
    "norm": _norm,
    "rotary": _rotary,
    "softmax": _softmax,
}
OPERATIONS = tuple(_MAKERS)
