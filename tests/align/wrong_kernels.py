"""Kernels that are wrong in one layer alone: in their output, or in the gradient of one input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pretrain.plugins.signatures import OptimizerKernels

CALLS = {"norm": 2, "rotary": 2, "bias_dropout_add": 2, "linear": 4, "attention": 1, "softmax": 1, "activation": 1}
"""Calls of an operation in a layer, in its order; cross entropy is called once, after the layers."""
AFTER = {"norm": 1, "linear": 1}
"""Calls after the layers."""


@dataclass(frozen=True)
class Mistake:
    """What is wrong with the kernel of an operation.

    Attributes:
        operation: whose kernel it is.
        what: "output", or the input whose gradient is wrong.
        layer: in which; None where the operation is called once in a micro-batch.
        call: of those of the layer.
        is_lost: the input gets no gradient at all.
    """

    operation: str
    what: str
    layer: int | None = 7
    call: int = 0
    is_lost: bool = False


class WrongKernel:
    """A kernel with a mistake, which knows its layer by counting its calls."""

    def __init__(self, kernel: Any, mistake: Mistake, layers: int) -> None:
        self._kernel, self._mistake = kernel, mistake
        per_layer = CALLS.get(mistake.operation, 0)
        self._period = layers * per_layer + AFTER.get(mistake.operation, 0) or 1
        self._wrong = 0 if mistake.layer is None else (mistake.layer - 1) * per_layer + mistake.call
        self._calls = 0

    def __call__(self, *given: Any, **options: Any) -> torch.Tensor:
        is_wrong = self._calls % self._period == self._wrong
        self._calls += 1
        if not is_wrong:
            return self._kernel(*given, **options)
        if self._mistake.what == "output":
            return self._kernel(*given, **options) * 1.01
        what = self._mistake.what
        if what in options:
            options[what] = options[what].detach() if self._mistake.is_lost else ScaledGradient.apply(options[what])
        return self._kernel(*given, **options)


class ScaledGradient(torch.autograd.Function):
    """The identity, with a gradient that is 3 % too large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 1.03 * gradient


def with_mistake(mistake: Mistake | None, layers: int):
    """Return an `around` of `build_engine` that puts in the mistake."""

    def around(request, kernel):
        if mistake is None or request.operation != mistake.operation:
            return kernel
        if request.operation == "optimizer":
            return OptimizerKernels(adam=_wrong_adam(kernel.adam, mistake), gradient_norm=_norm_of(kernel, mistake))
        return WrongKernel(kernel, mistake, layers)

    return around


def _norm_of(kernels, mistake):
    if mistake.what != "gradient norm":
        return kernels.gradient_norm
    return lambda tensors: 1.02 * kernels.gradient_norm(tensors)


def _wrong_adam(adam, mistake):
    """Return Adam that moves one parameter half as far: the first weight of linear_fc1 that it meets in the layer."""
    if mistake.what != "update":
        return adam

    class WrongAdam(adam):
        def step(self, *given, **options):
            wide = [x for group in self.param_groups for x in group["params"] if x.dim() == 2 and _is_fc1(x)]
            chosen = wide[mistake.layer - 1]
            before = chosen.detach().clone()
            super().step(*given, **options)
            with torch.no_grad():
                chosen.lerp_(before, 0.5)

    return WrongAdam


def _is_fc1(weight):
    return weight.shape[0] == 4 * weight.shape[1]
