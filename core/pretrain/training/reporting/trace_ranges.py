"""Names in a profiler's trace while it records: phases of the step, layers, their modules, and the kernels."""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from pretrain.model.context import ContextAttention
from pretrain.model.layer import CoreAttention, SerialLayer
from pretrain.plugins.signatures import MoePermutation, OptimizerKernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.report.timers import PhaseTimers

    Range = Callable[[str], AbstractContextManager[Any]]

_UNNAMED = (nn.ModuleList, nn.Sequential, nn.ModuleDict, nn.Identity)
_PLAIN_ATTRIBUTES = {"kernel", "_forward_impl"}  # the module is the operation; others have the kernel of a part


@contextmanager
def named_ranges(models: Sequence[nn.Module], kernels: Kernels, timers: PhaseTimers, begin: Range) -> Iterator[None]:
    """Open a range for all that the training enters in this block; before and after it, nothing is called.

    `begin` returns a context for a name: "forward-backward", "layer 3", "layer 3/self_attention.core_attention: flash
    (pretrain)". Inside of compiled layers there are no names.
    """
    names = _kernel_names(kernels)
    optimizer = next(row for row in kernels.table.rows if row.operation == "optimizer")
    phases = {"optimizer": f"optimizer: {_kernel_name(optimizer)}"}
    with ExitStack() as undo:
        timers.ranges = lambda phase: begin(phases.get(phase, phase))
        undo.callback(setattr, timers, "ranges", None)
        for model in models:
            _name_modules(model, begin, undo)
            _name_kernels(model, names, begin, undo)
        yield


def _name_modules(model: nn.Module, begin: Range, undo: ExitStack) -> None:
    opened: list[AbstractContextManager[Any]] = []

    def enter(name: str, *_: Any) -> None:
        opened.append(begin(name))
        opened[-1].__enter__()

    def leave(*_: Any) -> None:
        opened.pop().__exit__(None, None, None)

    for place, module, is_compiled in _places(model):
        if isinstance(module, SerialLayer):
            _mark(module, functools.partial(enter, place), leave, undo)
        elif not is_compiled and not isinstance(module, _UNNAMED):
            undo.callback(module.register_forward_pre_hook(functools.partial(enter, place)).remove)
            undo.callback(module.register_forward_hook(leave).remove)


def _mark(layer: SerialLayer, enter: Callable[[], None], leave: Callable[[], None], undo: ExitStack) -> None:
    """Open a layer's range in its marks, which are outside of what is compiled."""
    before = layer.marks

    def begin(hidden_states: Any) -> None:
        enter()
        if before is not None:
            before[0](hidden_states)

    def end(hidden_states: Any) -> None:
        if before is not None:
            before[1](hidden_states)
        leave()

    layer.marks = begin, end
    undo.callback(setattr, layer, "marks", before)


def _places(model: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """Yield each module with its name in the trace, and whether it is inside of a compiled layer."""
    layers: dict[str, SerialLayer] = {}
    for path, module in model.named_modules():
        if isinstance(module, SerialLayer):
            layers[path] = module
        around = next((name for name in layers if path == name or path.startswith(f"{name}.")), None)
        if around is None:
            yield path.removeprefix("decoder.") or "forward", module, False
            continue
        layer, inner = layers[around], path[len(around) + 1 :]
        is_compiled = layer._compiled_call_impl is not None  # noqa: SLF001  torch has no other way to ask
        yield f"layer {layer.layer_number}{inner and '/'}{inner}", module, is_compiled


def _kernel_name(row: Any) -> str:
    return f"{row.kernel} ({row.provider.split()[0]})"


def _kernel_names(kernels: Kernels) -> Mapping[int | str, str]:
    """Return the name of each kernel by the identity of its callable, and by its operation."""
    names: dict[int | str, str] = {}
    for row in kernels.table.rows:
        kernel = kernels.built[row.operation]
        parts = (kernel.permute, kernel.unpermute) if isinstance(kernel, MoePermutation) else (kernel,)
        names[row.operation] = _kernel_name(row)
        if not isinstance(kernel, OptimizerKernels):
            names |= {id(part): _kernel_name(row) for part in parts}
    return names


def _name_kernels(model: nn.Module, names: Mapping[int | str, str], begin: Range, undo: ExitStack) -> None:
    """Put a kernel that opens a range in the place of each one that a module holds."""
    for place, module, is_compiled in _places(model):
        for holder in () if is_compiled else (module, getattr(module, "context", None)):
            if not isinstance(holder, nn.Module | ContextAttention):
                continue
            for key, value in list(vars(holder).items()):
                kernel = value.args[0] if isinstance(value, functools.partial) and value.args else value
                name = names.get(id(kernel))
                if name is None and key == "kernel" and isinstance(module, CoreAttention):
                    name = names["attention"]  # a layer may have one of its own, with another scale
                if name is not None:
                    vars(holder)[key] = _Named(value, f"{_place_of_kernel(place, key)}: {name}", begin)
                    undo.callback(vars(holder).__setitem__, key, value)


def _place_of_kernel(place: str, key: str) -> str:
    if key in _PLAIN_ATTRIBUTES:
        return place
    if place == "forward":
        return key
    return f"{place}{'.' if '/' in place or not place.startswith('layer ') else '/'}{key}"


class _Named:
    """A kernel whose calls are in a range."""

    def __init__(self, kernel: Any, name: str, begin: Range) -> None:
        self._kernel, self._name, self._begin = kernel, name, begin

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._begin(self._name):
            return self._kernel(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)
