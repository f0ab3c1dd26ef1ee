"""Kernels of a run: plain callables, negotiated once."""

from __future__ import annotations

import functools
import inspect
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pretrain.plugins.signatures import OptimizerKernels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import CodeType

    from pretrain.plugins.negotiation.kernel_table import KernelTable
    from pretrain.plugins.signatures import (
        ActivationFn,
        AttentionFn,
        BiasDropoutAddFn,
        CrossEntropyFn,
        LinearFn,
        NormFn,
        ProcessGroupOptionsFn,
        RotaryFn,
        SoftmaxFn,
    )


class Kernels:
    """One callable for each operation that was asked for; `"rotary" in kernels` tells which.

    Take the callable once, when a layer is built, and keep it.
    """

    activation: ActivationFn
    attention: AttentionFn
    bias_dropout_add: BiasDropoutAddFn
    collectives: ProcessGroupOptionsFn
    cross_entropy: CrossEntropyFn
    linear: LinearFn
    norm: NormFn
    optimizer: OptimizerKernels
    rotary: RotaryFn
    softmax: SoftmaxFn

    def __init__(self, *, table: KernelTable, built: Mapping[str, Any]) -> None:
        self.table: Final = table
        self.built: Final = built

    def __contains__(self, operation: str) -> bool:
        return operation in self.built

    if not TYPE_CHECKING:  # mypy knows the operations above, and no others

        def __getattr__(self, operation: str) -> Any:
            built = vars(self).get("built", {})
            if operation not in built:
                msg = f"no kernel was asked for {operation}; there are: {', '.join(built)}"
                raise AttributeError(msg)
            return built[operation]


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
    kernel = kernel.func if isinstance(kernel, functools.partial) else kernel
    return str(getattr(kernel, "__module__", None) or type(kernel).__module__)
