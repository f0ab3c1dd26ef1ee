"""Wraps kernels to record what they are given and return, forward and backward.

A tap is no kernel: the inputs go through an identity whose backward pass sees exactly the gradients that the kernel
returned for them, before anything else is added; a hook on the output sees the gradient that the kernel is given.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from pretrain.plugins.signatures import SIGNATURES
from pretrain.tools.align.recording.call_check import CallCheck, is_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from pretrain.plugins.requests import Request
    from pretrain.tools.align.recording.folder import Visit
    from pretrain.tools.align.recording.sink import Sink
    from pretrain.tools.align.recording.visits import Visits

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    operation: tuple(name for name, given in list(signature.parameters.items())[1:] if given.kind != given.KEYWORD_ONLY)
    for operation, signature in SIGNATURES.items()
}
"""Operation -> its kernel's arguments (`pretrain.plugins.signatures`)."""

_INSIDE_OTHERS = "softmax"
"""An operation that another one calls: its tensors are checked, but not kept; they are quadratic in the sequence."""


class Taps:
    """Maker of taps, and what they have found."""

    def __init__(self, *, checking: bool = True) -> None:
        """Begin without a sink and visits, which are known when the model is built; calls are not seen before.

        Args:
            checking: whether calls are also compared with float64.
        """
        self.checking = checking
        self.checks: list[dict[str, Any]] = []
        self.unfinished: dict[_Tap, None] = {}
        self.step = 0
        self.sink: Sink | None = None
        self.visits: Visits | None = None

    def around(self, request: Request, kernel: Any) -> Any:
        """Return the kernel with a tap around it; see `pretrain.plugins.negotiation.building.negotiate`."""
        if request.operation not in ARGUMENTS:
            return kernel
        return functools.partial(self._call, request, kernel)

    def finish_step(self) -> None:
        """Finish the checks of calls whose backward pass was not, or not wholly, run."""
        for tap in list(self.unfinished):
            tap.finish()

    def _call(self, request: Request, kernel: Callable[..., Tensor], *given: Any, **options: Any) -> Tensor:
        visit = self.visits.current if self.visits else None
        if visit is None or self.sink is None:
            return kernel(*given, **options)
        names = ARGUMENTS[request.operation]
        arguments = {**dict(zip(names[: len(given)], given, strict=True)), **options}
        tap = _Tap(self, self.sink, request, visit, arguments)
        entered = tap.entered(arguments)
        # As given: a kernel may call its parameters what it likes.
        by_position = [entered[name] for name in names[: len(given)]]
        output = kernel(*by_position, **{name: entered[name] for name in options})
        tap.leave(output)
        return output


class _Tap:
    """Tap of one call."""

    def __init__(self, taps: Taps, sink: Sink, request: Request, visit: Visit, arguments: dict[str, Any]) -> None:
        self.operation, self.visit = request.operation, visit
        self.call = visit.calls[self.operation]
        visit.calls[self.operation] += 1
        self._taps, self._sink = taps, sink
        # By name: ZeRO-3 passes on a bias that its hooks have made another tensor of.
        self._weights = {name for name in ("weight", "bias") if arguments.get(name) is not None}
        self._sources: dict[str, Any] = {}
        self._inputs: dict[str, Any] = {}
        self._main_grads: dict[str, Tensor] = {}
        self._order = [0, 0]
        self._has_gradient = False
        self._check = CallCheck(request, arguments) if taps.checking and is_checked(request, visit) else None

    def entered(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments, of which those that get a gradient go through the identity."""
        if not torch.is_grad_enabled():
            return arguments
        self._sources = {
            name: value for name, value in arguments.items() if isinstance(value, torch.Tensor) and value.requires_grad
        }
        if not self._sources:
            return arguments
        entered = _Enter.apply(self, *self._sources.values())  # type: ignore[no-untyped-call]
        self._inputs = dict(zip(self._sources, entered, strict=True))
        for name in self._weights & set(self._inputs):
            # What linear kernels ask of a weight: its main gradient and megatron-core's marks, or ZeRO-3's.
            self._inputs[name].__dict__.update(self._sources[name].__dict__)
        return {**arguments, **self._inputs}

    def leave(self, output: Tensor) -> None:
        """Take the output, and wait for its gradient."""
        self._order = [self._tick(), 0]
        if not self.visit.again:
            self._add("output", output, is_backward=False)
        if self._check is not None:
            self._check.output(output)
            self._taps.unfinished[self] = None
        if self._inputs and output.requires_grad:
            output.register_hook(self._begin_backward)  # type: ignore[no-untyped-call]
        elif self._inputs or not self.visit.again:
            self._order[1] = self._tick()
            self._finish_check(dict.fromkeys(self._inputs))  # the kernel has cut its output off from them

    def finish(self) -> None:
        """Check what was seen of a call whose backward pass did not come back to its inputs."""
        self._finish_check(dict.fromkeys(self._inputs) if self._has_gradient else {})
        self._inputs, self._sources = {}, {}

    def _begin_backward(self, gradient: Tensor | None) -> None:
        if gradient is None:  # a later kernel has lost it
            return
        self._has_gradient = True
        self._order[1] = self._tick()
        if self.operation == "cross_entropy":
            self._sink.unit(self.visit, gradient)
        if self._check is not None:
            self._check.output_gradient(gradient)
            for name in self._weights & set(self._inputs):
                main_grad = getattr(self._inputs[name], "main_grad", None)
                if main_grad is not None:
                    self._main_grads[name] = main_grad.detach().clone()

    def end_backward(self, gradients: tuple[Tensor | None, ...]) -> None:
        """Take the gradients that the kernel has returned for its inputs, in the order of `_Enter`."""
        found = dict(zip(self._inputs, gradients, strict=True))
        for name in self._weights & set(found):
            alias, weight = self._inputs[name], self._sources[name]
            if getattr(alias, "grad_added_to_main_grad", False):
                weight.grad_added_to_main_grad = True
                alias.grad_added_to_main_grad = False
                before = self._main_grads.pop(name, None)
                if before is None:
                    del found[name]
                else:
                    found[name] = weight.main_grad.detach() - before
        self._order[1] = self._tick()
        for name, gradient in found.items():
            if gradient is not None and name not in self._weights:
                self._add(name, gradient, is_backward=True)
        self._finish_check(found if self._has_gradient else {})
        self._inputs, self._sources = {}, {}

    def _add(self, name: str, tensor: Tensor, *, is_backward: bool) -> None:
        if self.operation != _INSIDE_OTHERS:
            self._sink.add(self.visit, self.operation, self.call, name, tensor, is_backward=is_backward)

    def _tick(self) -> int:
        return self._sink.tick()

    def _finish_check(self, gradients: dict[str, Tensor | None]) -> None:
        self._taps.unfinished.pop(self, None)
        if self._check is None:
            return
        self._taps.checks.append(
            {
                "step": self._taps.step,
                "position": self.visit.place.position,
                "module": self.visit.place.module,
                "operation": self.operation,
                "call": self.call,
                "order": self._order,
                "errors": self._check.errors(gradients),
            }
        )
        self._check = None


class _Enter(torch.autograd.Function):
    """The identity of several tensors at once: its backward pass runs when the kernel has returned all gradients."""

    @staticmethod
    def forward(ctx: Any, tap: _Tap, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.tap = tap
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.tap.end_backward(gradients)
        return (None, *gradients)
