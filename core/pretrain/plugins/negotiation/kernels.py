"""Kernels of a run: plain callables, negotiated and built once, before the model is built."""

from __future__ import annotations

import functools
import inspect
import traceback
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pretrain.errors import BackendError
from pretrain.plugins.host.discovery import cause
from pretrain.plugins.negotiation.choosing import choose
from pretrain.plugins.negotiation.kernel_table import KernelTable
from pretrain.plugins.signatures import MoePermutation, OptimizerKernels
from pretrain.plugins.stand_in import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import CodeType

    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.choosing import KernelChoice
    from pretrain.plugins.negotiation.kernel_table import KernelRow
    from pretrain.plugins.requests import Request
    from pretrain.plugins.signatures import (
        ActivationFn,
        AttentionFn,
        BiasDropoutAddFn,
        CrossEntropyFn,
        GroupedLinearFn,
        LinearFn,
        NormFn,
        ProcessGroupOptionsFn,
        RotaryFn,
        RouterFn,
        SoftmaxFn,
    )

    WrapKernel = Callable[[Request, Any], Any]


class Kernels:
    """One callable for each operation that was asked for; `"rotary" in kernels` tells which.

    Take the callable once, when a layer is built, and keep it.
    """

    activation: ActivationFn
    attention: AttentionFn
    bias_dropout_add: BiasDropoutAddFn
    collectives: ProcessGroupOptionsFn
    cross_entropy: CrossEntropyFn
    grouped_linear: GroupedLinearFn
    linear: LinearFn
    moe_permute: MoePermutation
    norm: NormFn
    optimizer: OptimizerKernels
    rotary: RotaryFn
    router: RouterFn
    softmax: SoftmaxFn

    def __init__(self, *, table: KernelTable, built: Mapping[str, Any]) -> None:
        self.table: Final = table
        self.built: Final = built

    def __contains__(self, key: str) -> bool:
        return key in self.built

    def activation_of(self, role: str) -> ActivationFn:
        """Return the activation of a role."""
        kernel: ActivationFn = getattr(self, f"activation@{role}")
        return kernel

    def norm_of(self, role: str) -> NormFn:
        """Return the norm of a role."""
        kernel: NormFn = getattr(self, f"norm@{role}")
        return kernel

    def linear_of(self, role: str) -> LinearFn:
        """Return the linear of a role: the one of all linears where none was asked for."""
        kernel: LinearFn = self.built.get(f"linear@{role}", self.built["linear"])
        return kernel

    if not TYPE_CHECKING:  # mypy knows the operations above, and no others

        def __getattr__(self, operation: str) -> Any:
            built = vars(self).get("built", {})
            if operation not in built:
                msg = f"no kernel was asked for {operation}; there are: {', '.join(built)}"
                raise AttributeError(msg)
            return built[operation]


def negotiate(
    plugins: Plugins,
    requests: Sequence[Request],
    chosen: Mapping[str, str],
    fallback: str,
    *,
    earlier: Kernels | None = None,
    planned: bool = False,
    wrap_kernel: WrapKernel | None = None,
) -> Kernels:
    """Choose a kernel for every request and build it; raises KernelError where an operation has no allowed kernel.

    `chosen` is operation, or operation@role -> "auto" (also where neither is in it), a kernel's name, or a kind
    ("flash"). With `fallback` "forbid" an operation that only the reference serves is an error, unless the recipe names
    the reference kernel. Kernels negotiated `earlier` (collectives are needed before there are process groups) are
    passed to `Offer.build`, and are part of the result unless they are negotiated again. `planned` makes the stand-ins
    (`Offer.fake`), and `wrap_kernel` returns what is called in place of a built kernel, to watch its calls.
    """
    choices = choose(plugins, requests, chosen, fallback)
    built: dict[str, Any] = dict(earlier.built) if earlier else {}
    for choice in choices:
        kernel = _build(choice, MappingProxyType(dict(built)), planned=planned)
        built[choice.request.key] = kernel if wrap_kernel is None else wrap_kernel(choice.request, kernel)
    rows = {row.operation: row for row in (earlier.table.rows if earlier else ())}
    rows |= {choice.request.key: choice.row for choice in choices}
    return Kernels(table=table_of(plugins, rows.values()), built=MappingProxyType(built))


def table_of(plugins: Plugins, rows: Iterable[KernelRow]) -> KernelTable:
    """Return the kernel table of rows, as `KernelChoice.row` gives them."""
    return KernelTable(backend=plugins.backend.name, provider=plugins.provider, rows=tuple(rows))


_OF_PARTS: Mapping[str, type] = {"moe_permute": MoePermutation, "optimizer": OptimizerKernels}
"""Operation -> its kernel, where that is no single callable."""


def _build(choice: KernelChoice, built: Mapping[str, Any], *, planned: bool) -> Any:
    operation = choice.request.key
    of_parts = _OF_PARTS.get(operation)
    who = f"kernel {choice.taken.label} for {operation}"
    try:
        kernel = (choice.offer.fake or choice.offer.build)(built) if planned else choice.offer.build(built)
    except Exception as exc:
        msg = f"{who} cannot be built: {cause(exc)}\nPRETRAIN_TRACEBACK=1 shows where."
        raise BackendError(msg) from exc
    if not (isinstance(kernel, of_parts) if of_parts else callable(kernel)):
        wanted = of_parts.__name__ if of_parts else "something callable"
        msg = f"{who}: its build returned {type(kernel).__name__}, not {wanted} (see docs/hooks.md)."
        raise BackendError(msg)
    if not planned or isinstance(kernel, OptimizerKernels):
        return kernel
    if isinstance(kernel, MoePermutation):
        permute, unpermute = within(operation, kernel.permute), within(operation, kernel.unpermute)
        return MoePermutation(permute=permute, unpermute=unpermute)
    return within(operation, kernel)


_ENTRIES = ("__call__", "forward", "backward")


@contextmanager
def naming_kernels(kernels: Kernels) -> Iterator[None]:
    """Add `add_note`'s note to an error that leaves the block; calls of kernels have no overhead."""
    try:
        yield
    except BaseException as error:
        add_note(error, kernels)
        raise


def add_note(error: BaseException, kernels: Kernels) -> None:
    """Add a note with name and provider of the kernel whose code raised an error, if any did.

    A kernel's code is that of its callable; after that, for a backward pass that is a function of its own, whatever
    lies in the same module as the callable. The pure-torch reference and native code are not searched.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
    codes = {row.operation: set(_codes(kernels.built[row.operation])) for row in kernels.table.rows}
    modules = {row.operation: _module(kernels.built[row.operation]) for row in kernels.table.rows}
    rows = [row for row in kernels.table.rows if not modules[row.operation].startswith("pretrain.reference")]
    called = ([row for row in rows if frame.f_code in codes[row.operation]] for frame in frames)
    beside = ([row for row in rows if frame.f_globals.get("__name__") == modules[row.operation]] for frame in frames)
    for inside in filter(None, (*called, *beside)):
        named = ", ".join(f"'{row.kernel}' for {row.operation} ({row.provider})" for row in inside)
        error.add_note(f"Raised in {'the kernel' if len(inside) == 1 else 'one of the kernels'} {named}.")
        return


def _codes(kernel: Any) -> Iterator[CodeType]:
    if isinstance(kernel, functools.partial):
        yield from _codes(kernel.func)
    elif isinstance(kernel, MoePermutation):
        yield from (*_codes(kernel.permute), *_codes(kernel.unpermute))
    elif isinstance(kernel, OptimizerKernels):
        yield from _codes(kernel.gradient_norm)
        methods = map(inspect.unwrap, filter(callable, vars(kernel.adam).values()))  # torch wraps `step`
        yield from (method.__code__ for method in methods if hasattr(method, "__code__"))
    elif hasattr(kernel, "__code__"):
        yield kernel.__code__
    else:
        entries: Iterator[Any] = (getattr(type(kernel), name, None) for name in _ENTRIES)
        yield from (entry.__code__ for entry in entries if hasattr(entry, "__code__"))


def _module(kernel: Any) -> str:
    if isinstance(kernel, OptimizerKernels):
        kernel = kernel.adam
    if isinstance(kernel, MoePermutation):
        kernel = kernel.permute
    kernel = kernel.func if isinstance(kernel, functools.partial) else kernel
    return str(getattr(kernel, "__module__", None) or type(kernel).__module__)
