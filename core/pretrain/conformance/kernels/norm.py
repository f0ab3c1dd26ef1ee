"""Layer norm and RMS norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.cases import Case, run_with
from pretrain.conformance.comparison import assert_agrees, assert_repeats, oracle, random
from pretrain.conformance.example_calls import Sizes, example_call
from pretrain.conformance.examples import DTYPES, norm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import NormRequest

KINDS = ("LayerNorm", "RMSNorm")
HALF = (torch.bfloat16, torch.float16)
TOKENS = {48: (7, 2), 100: (33, 3), 1023: (5, 1), 768: (3, 2), 1024: (2, 1), 6144: (3, 1), 12288: (3, 1)}
"""Hidden size -> sequence and micro batch: odd ones, tensors that are not contiguous (100), and those of the models."""

EPSILONS = (1e-5, 1e-2, 1e-6)


def _any(dtypes: Iterable[torch.dtype] = DTYPES, **asked: Any) -> list[Case]:
    """Return a case for every kind and dtype, of the first hidden size that the kernel takes."""
    return [
        Case(tuple(norm(dtype, kind, hidden=hidden, **asked) for hidden in TOKENS))
        for kind in KINDS
        for dtype in dtypes
    ]


class TestNorm:
    """A `NormFn`."""

    operations = ("norm",)

    @run_with(norm(dtype, kind, hidden=hidden) for hidden in TOKENS for kind in KINDS for dtype in DTYPES)
    def test_agrees_with_float64(self, subject: Subject, kernel: Kernel, asked: NormRequest) -> None:
        """Output and gradients of input, weight and bias agree; also for one token."""
        kernels, inputs = (subject.build(kernel, asked), oracle(asked)), _inputs(asked)
        assert_agrees(*kernels, inputs, subject.device, is_strided=asked.hidden_size == 100)
        assert_agrees(*kernels, inputs | {"x": inputs["x"][:1, :1]}, subject.device)

    @run_with(
        Case(tuple(norm(dtype, kind, hidden=size, role="head") for size in (128, 64, 48)))
        for kind in KINDS
        for dtype in DTYPES
    )
    def test_takes_heads(self, subject: Subject, kernel: Kernel, asked: NormRequest) -> None:
        """[s, b, n, d] with the heads of a projection, which are not contiguous."""
        kernels, inputs = (subject.build(kernel, asked), oracle(asked)), _inputs(asked)
        heads = random(7, 2, 3, asked.hidden_size, dtype=asked.dtype)
        assert_agrees(*kernels, inputs | {"x": heads}, subject.device, is_strided=True)

    @run_with(_any(HALF, weight_dtype=torch.float32))
    def test_takes_weights_in_fp32(self, subject: Subject, kernel: Kernel, asked: NormRequest) -> None:
        """fp16 and bf16 inputs with fp32 weights; the output has the dtype of the input."""
        kernels, inputs = (subject.build(kernel, asked), oracle(asked)), _inputs(asked)
        assert_agrees(*kernels, {name: x if name == "x" else x.float() for name, x in inputs.items()}, subject.device)

    @run_with(case for epsilon in EPSILONS for case in _any(epsilon=epsilon))
    def test_adds_epsilon(self, subject: Subject, kernel: Kernel, asked: NormRequest) -> None:
        """The requested epsilon, with rows of a variance no larger than it, and a row of zeros."""
        kernels, inputs = (subject.build(kernel, asked), oracle(asked)), _inputs(asked)
        small = inputs["x"] * asked.epsilon**0.5
        small[0] = 0
        for factor in (1.0, 0.25):
            assert_agrees(*kernels, inputs | {"x": small * factor}, subject.device)

    @run_with(
        Case(tuple(norm(dtype, kind, hidden=hidden) for hidden in (1024, 768, 6144, 48)))
        for kind in KINDS
        for dtype in HALF
    )
    def test_accumulates_half_precision_in_fp32(self, subject: Subject, kernel: Kernel, asked: NormRequest) -> None:
        """Statistics in fp32: rows whose squares overflow fp16."""
        kernels, inputs = (subject.build(kernel, asked), oracle(asked)), _inputs(asked)
        inputs["x"] = inputs["x"] * 256 + 32
        assert_agrees(*kernels, inputs, subject.device)

    @run_with(_any(deterministic=True))
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: NormRequest) -> None:
        """Calls are bitwise reproducible and agree with the oracle."""
        inputs = _inputs(asked) | {"x": random(33, 3, asked.hidden_size, dtype=asked.dtype)}
        assert_repeats(subject.build(kernel, asked), oracle(asked), inputs, subject.device)


def _inputs(asked: NormRequest) -> dict[str, Tensor]:
    tokens, batch = TOKENS.get(asked.hidden_size, (7, 2))
    return example_call(asked, Sizes(tokens=tokens, batch=batch)).inputs
