"""Kernels that are wrong in one layer alone: in their output, or in the gradient of one input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias

from pretrain.plugins.signatures import OptimizerKernels
from pretrain.tools.align.recording.taps import ARGUMENTS

CALLS = {
    "norm": 2,
    "rotary": 2,
    "bias_dropout_add": 2,
    "linear": 4,
    "attention": 1,
    "softmax": 1,
    "activation": 1,
    "grouped_linear": 2,
    "router": 1,
}
"""Calls of an operation in a layer, in its order; cross entropy is called once, after the layers."""
AFTER = {"norm": 1, "linear": 1}
"""Calls after the layers."""


PARTS = {
    "all": ...,
    "head": (slice(None), slice(None), 0),
    "head's features": (..., slice(16)),
    "token": (3, 1),
    "last position": -1,
}
"""Parts of a tensor [positions, samples, ...] that can be wrong alone."""


@dataclass(frozen=True)
class Mistake:
    """What is wrong with the kernel of an operation.

    Attributes:
        operation: whose kernel it is.
        what: "output", or the input whose gradient is wrong.
        layer: in which; None where the operation is called once in a micro-batch.
        call: of those of the layer.
        is_lost: the input gets no gradient at all.
        part: of the tensor; see `PARTS`.
        since: micro-batch, counted from 0 over all steps, from which on it is wrong.
    """

    operation: str
    what: str
    layer: int | None = 7
    call: int = 0
    is_lost: bool = False
    part: str = "all"
    since: int = 0


class WrongKernel:
    """A kernel with a mistake, which knows its layer by counting its calls."""

    def __init__(self, kernel: Any, mistake: Mistake, layers: int) -> None:
        self._kernel, self._mistake = kernel, mistake
        per_layer = CALLS.get(mistake.operation, 0)
        self._period = layers * per_layer + AFTER.get(mistake.operation, 0) or 1
        self._wrong = 0 if mistake.layer is None else (mistake.layer - 1) * per_layer + mistake.call
        self._calls = 0

    def __call__(self, *given: Any, **options: Any) -> torch.Tensor:
        is_wrong = self._calls % self._period == self._wrong and self._calls // self._period >= self._mistake.since
        self._calls += 1
        if not is_wrong:
            return self._kernel(*given, **options)
        options |= dict(zip(ARGUMENTS[self._mistake.operation], given, strict=False))
        given = ()
        what, part = self._mistake.what, PARTS.get(self._mistake.part)
        if self._mistake.part == "epsilon":
            return self._kernel(*given, **options) * _with_twice_the_epsilon(options["x"])
        if self._mistake.part == "unrounded":
            return F.linear(options["x"], options["weight"], options["bias"])
        if self._mistake.part == "mask":
            return self._kernel(*given, **{**options, "scores": _without_the_first_key(options["scores"])})
        if what == "output":
            return _scaled(self._kernel(*given, **options), part, 1.01)
        if what in options:
            x = options[what]
            options[what] = x.detach() if self._mistake.is_lost else ScaledGradient.apply(x, part)
        return self._kernel(*given, **options)


def _scaled(x, part, factor):
    if isinstance(x, tuple):  # a router's weights, and its choice
        return (_scaled(x[0], part, factor), *x[1:])
    factors = torch.ones_like(x)
    factors[part] = factor
    return x * factors


def _with_twice_the_epsilon(x, epsilon=1e-5):
    variance = x.detach().float().var(-1, correction=0, keepdim=True)
    return ((variance + epsilon) / (variance + 2 * epsilon)).sqrt().to(x.dtype)


def _without_the_first_key(scores):
    """Return scores of which the last position does not see the first one."""
    hidden = torch.zeros_like(scores)
    hidden[..., -1, 0] = -1e4
    return scores + hidden


class ScaledGradient(torch.autograd.Function):
    """The identity, with a gradient of which a part is 3 % too large."""

    @staticmethod
    def forward(ctx, x, part):
        ctx.part = part
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return _scaled(gradient, ctx.part, 1.03), None


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
    return lambda tensors: (1 + 5e-5) * kernels.gradient_norm(tensors)


def _wrong_adam(adam, mistake):
    """Return Adam that moves linear_fc1's weight in the layer half as far, or lets it decay too much."""
    if mistake.what not in {"update", "weight decay"}:
        return adam

    class WrongAdam(adam):
        def step(self, *given, **options):
            groups = self.param_groups
            wide = [(x, group) for group in groups for x in group["params"] if x.dim() == 2 and _is_fc1(x)]
            chosen, group = wide[mistake.layer - 1]
            before = chosen.detach().clone()
            super().step(*given, **options)
            with torch.no_grad():
                if mistake.what == "update":
                    chosen.lerp_(before, 0.5)
                else:  # a tenth more
                    chosen.sub_(before, alpha=0.1 * group["lr"] * group["weight_decay"])

    return WrongAdam


def _is_fc1(weight):
    return weight.shape[0] == 4 * weight.shape[1]
