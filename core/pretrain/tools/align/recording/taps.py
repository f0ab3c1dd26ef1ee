"""Wraps kernels to record what they are given and return, forward and backward.

A tap is no kernel: the inputs go through an identity whose backward pass sees exactly the gradients that the kernel
returned for them, before anything else is added; a hook on the output sees the gradient that the kernel is given.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pretrain.model.layer import SerialLayer
from pretrain.plugins.signatures import SIGNATURES
from pretrain.tools.align.recording.call_check import CallCheck, is_checked
from pretrain.tools.align.recording.folder import ModulePlace, Visit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from pretrain.plugins.requests import Request
    from pretrain.tools.align.recording.folder import Sink

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    operation: tuple(name for name, given in list(signature.parameters.items())[1:] if given.kind != given.KEYWORD_ONLY)
    for operation, signature in SIGNATURES.items()
}
"""Operation -> its kernel's arguments (`pretrain.plugins.signatures`)."""
_OF_ROWS = {"grouped_linear", "router", "expert"}
"""Operations and roles inside of a mixture of experts: their first dimension is no sequence, whose parts are kept."""
_INSIDE_OTHERS = "softmax"
"""An operation that another one calls: its tensors are checked, but not kept; they are quadratic in the sequence."""


class Taps:
    """Maker of taps, and what they have found."""

    def __init__(self, *, checking: bool = True) -> None:
        self.checking = checking
        self.checks: list[dict[str, Any]] = []
        self.unfinished: dict[_Tap, None] = {}
        self.step = 0
        self.sink: Sink | None = None
        self.visits: Visits | None = None

    def around(self, request: Request, kernel: Any) -> Any:
        """Return the kernel with a tap around it; see `pretrain.plugins.negotiation.kernels.negotiate`."""
        if request.operation not in ARGUMENTS or {request.operation, request.role} & _OF_ROWS:
            return kernel
        return partial(self._call, request, kernel)

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
        self._order = [self._sink.tick(), 0]
        if not self.visit.again:
            self._add("output", output, is_backward=False)
        if self._check is not None:
            self._check.output(output)
            self._taps.unfinished[self] = None
        if self._inputs and output.requires_grad:
            output.register_hook(self._begin_backward)  # type: ignore[no-untyped-call]
        elif self._inputs or not self.visit.again:
            self._order[1] = self._sink.tick()
            self._finish_check(dict.fromkeys(self._inputs))  # the kernel has cut its output off from them

    def finish(self) -> None:
        """Check what was seen of a call whose backward pass did not come back to its inputs."""
        self._finish_check(dict.fromkeys(self._inputs) if self._has_gradient else {})
        self._inputs, self._sources = {}, {}

    def _begin_backward(self, gradient: Tensor | None) -> None:
        if gradient is None:  # a later kernel has lost it
            return
        self._has_gradient = True
        self._order[1] = self._sink.tick()
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
        self._order[1] = self._sink.tick()
        for name, gradient in found.items():
            if gradient is not None and name not in self._weights:
                self._add(name, gradient, is_backward=True)
        self._finish_check(found if self._has_gradient else {})
        self._inputs, self._sources = {}, {}

    def _add(self, name: str, tensor: Tensor, *, is_backward: bool) -> None:
        if self.operation != _INSIDE_OTHERS:
            self._sink.add(self.visit, self.operation, self.call, name, tensor, is_backward=is_backward)

    def _finish_check(self, gradients: dict[str, Tensor | None]) -> None:
        self._taps.unfinished.pop(self, None)
        if self._check is None:
            return
        check = {"step": self._taps.step, **asdict(self.visit.place), "operation": self.operation, "call": self.call}
        self._taps.checks.append({**check, "order": self._order, "errors": self._check.errors(gradients)})
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


_BEFORE = "embedding"
"""Modules whose path begins with it come before the layers; all others outside of layers come after them."""


class Visits:
    """The modules that are being executed, the innermost last, by hooks on all modules of a rank."""

    def __init__(self, models: Sequence[nn.Module], layers: int, sink: Sink) -> None:
        self._sink = sink
        self._open: list[Visit] = []
        self._seen: Counter[tuple[int, bool]] = Counter()
        for model in models:
            for path, module in model.named_modules():
                # megatron-core's embedding transposes its output after this norm.
                is_transposed = path != "embedding_layernorm" or model.embedding.reduce_scatter_embeddings  # type: ignore[union-attr]
                self._watch(module, _place_of(model, path, layers), batch_first=not is_transposed)

    @property
    def current(self) -> Visit | None:
        """The innermost module's."""
        return self._open[-1] if self._open else None

    def begin_step(self) -> None:
        """Count micro-batches from 0 again."""
        self._seen.clear()
        self._open.clear()

    def _watch(self, module: nn.Module, place: ModulePlace, *, batch_first: bool) -> None:
        def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # megatron-core recomputes activations inside the backward pass.
            again = torch._C._current_graph_task_id() != -1  # noqa: SLF001  as torch.utils.checkpoint asks
            key = id(module), again
            visit = Visit(place, self._seen[key], batch_first, again)
            self._seen[key] += 1
            self._open.append(visit)
            hidden: Any = args[0] if args else kwargs.get("hidden_states")
            if isinstance(module, SerialLayer) and torch.is_grad_enabled() and hidden.requires_grad:
                hidden.register_hook(partial(self._add_gradient, visit))

        def leave(_module: nn.Module, _args: Any, output: Any) -> None:
            visit = self._open.pop()
            if visit.again or not (isinstance(module, SerialLayer) or place.module == _BEFORE):
                return
            if output is not None:  # None after an error
                found = output[0] if isinstance(output, tuple) else output
                self._sink.add(visit, "", 0, "output", found, is_backward=False)

        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave, always_call=True)

    def _add_gradient(self, visit: Visit, gradient: torch.Tensor | None) -> None:
        if gradient is not None:  # None: a later kernel has lost it
            self._sink.add(visit, "", 0, "input", gradient, is_backward=True)


def _place_of(model: nn.Module, path: str, layers: int) -> ModulePlace:
    words = path.split(".")
    if words[:2] == ["decoder", "layers"] and len(words) > 2:
        number = model.get_submodule(".".join(words[:3])).layer_number
        return ModulePlace(int(number), ".".join(words[3:]))  # type: ignore[arg-type]  # megatron-core's, an int
    name = path.removeprefix("decoder.")
    return ModulePlace(0 if path.startswith(_BEFORE) else layers + 1, name)
