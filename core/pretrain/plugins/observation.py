"""Observation of stand-ins (`pretrain.plugins.stand_in`), whose computation no one sees: they only allocate."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Tell = Callable[[Iterable[Any], Iterable[Any]], None]


class Observer(Protocol):
    """Listener to the passes of stand-ins."""

    def begin(self) -> None:
        """Take note of the beginning of a pass."""

    def end(self, operation: str, read: Iterable[Any], written: Iterable[Any], *, is_backward: bool) -> None:
        """Take note of the end of a pass, when its workspace is free again.

        Args:
            operation: whose kernel it stands for: "attention", ...
            read: the kernel's arguments; in the backward pass what it has kept, and the output's gradient.
            written: the output and what is kept; in the backward pass the gradients.
            is_backward: of which pass.
        """


_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
_operation: ContextVar[str] = ContextVar("operation", default="")


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Tell an observer of all stand-ins that are called in a block."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def within(operation: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel, whose calls are those of the operation."""

    def call(*arguments: Any, **options: Any) -> Any:
        with _called(operation):
            return kernel(*arguments, **options)

    return functools.update_wrapper(call, kernel, assigned=("__module__", "__name__", "__qualname__"), updated=())


def operation() -> str:
    """Return the operation whose kernel is being called; "" outside of one."""
    return _operation.get()


@contextmanager
def passing(name: str, *, is_backward: bool) -> Iterator[Tell]:
    """Be in a pass of an operation's stand-in; the block calls what it is given with the tensors read and written."""
    observer = _observer.get()

    def tell(read: Iterable[Any], written: Iterable[Any]) -> None:
        if observer is not None:
            observer.end(name, read, written, is_backward=is_backward)

    if observer is not None:
        observer.begin()
    with _called(name):
        yield tell


@contextmanager
def _called(name: str) -> Iterator[None]:
    token = _operation.set(name)
    try:
        yield
    finally:
        _operation.reset(token)
