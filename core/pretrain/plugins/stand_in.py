"""Stand-ins of kernels for fake tensors, which have shapes and dtypes and no values: see `Offer.fake`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, overload

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor

    Tell = Callable[[Iterable[Any], Iterable[Any]], None]
    Compute = Callable[..., tuple[Tensor, Sequence[Tensor | None]]]
    Gradients = Callable[[Sequence[Any], Tensor, "Empty"], Sequence[Tensor | None]]


def stand_in(compute: Compute, gradients: Gradients | None = None) -> Callable[..., Tensor]:
    """Return a differentiable function that allocates what a kernel allocates, and computes nothing.

    `compute` is called with the kernel's arguments; it returns the output and the tensors that are kept for the
    backward pass. Inputs among them are kept as they are; a view of an input shares its memory. Tensors that may need a
    gradient are arguments by position, named or not; arguments by keyword alone get none.

    `gradients` is called in the backward pass with the kept tensors, the output's gradient, and for each positional
    argument an empty tensor for its gradient, or None where it needs none (`Empty`); it returns these, or others in
    their place (a kept tensor that the gradient overwrites). None: the empty tensors.

    Tensors that either makes and does not return count as the kernel's workspace: in a local variable up to the return,
    deleted earlier only until then.

    Example:
        def attention(query, key, value, mask=None, *, training=True):
            s, b, n, d = query.shape
            statistics = query.new_empty(b, n, s, dtype=torch.float32)
            context = torch.empty_like(query)
            return context.view(s, b, n * d), (query, key, value, context, statistics)

        Offer(name="flash", build=..., fake=lambda _: stand_in(attention))
    """
    signature = inspect.signature(compute)

    def call(*arguments: Any, **options: Any) -> Tensor:
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        output: Tensor = _StandIn.apply(compute, gradients, bound.kwargs, *bound.args)  # type: ignore[no-untyped-call]
        return output

    return call


class _StandIn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, compute: Compute, gradients: Gradients | None, options: dict[str, Any], *arguments: Any
    ) -> Tensor:
        ctx.operation = current_operation()
        with passing(ctx.operation, is_backward=False) as tell:
            output, kept = compute(*arguments, **options)
            tell(arguments, (output, *kept))
        ctx.save_for_backward(*kept)
        ctx.gradients = gradients
        ctx.like = [
            (x.shape, x.dtype, x.device) if isinstance(x, torch.Tensor) and x.requires_grad else None for x in arguments
        ]
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        empty = Empty(ctx.like)
        with passing(ctx.operation, is_backward=True) as tell:
            found = ctx.gradients(ctx.saved_tensors, grads[0], empty) if ctx.gradients else empty
            tell((*ctx.saved_tensors, *grads), found)
        return None, None, None, *found


class Empty(Sequence["Tensor | None"]):
    """Tensors for the gradients of the positional arguments; None where an argument needs none.

    Each is allocated when it is first looked at, so that a backward pass has it from when the kernel would.
    """

    def __init__(self, like: Sequence[tuple[torch.Size, torch.dtype, torch.device] | None]) -> None:
        self._like = like
        self._made: dict[int, Tensor] = {}

    def needed(self, place: int) -> bool:
        """Tell whether the argument at that place needs a gradient; nothing is allocated."""
        return self._like[place] is not None

    def __len__(self) -> int:
        return len(self._like)

    @overload
    def __getitem__(self, place: int) -> Tensor | None: ...
    @overload
    def __getitem__(self, place: slice) -> list[Tensor | None]: ...
    def __getitem__(self, place: int | slice) -> Tensor | list[Tensor | None] | None:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        like = self._like[place]
        if like is None:
            return None
        shape, dtype, device = like
        if place not in self._made:
            self._made[place] = torch.empty(shape, dtype=dtype, device=device)
        return self._made[place]


class Observer(Protocol):
    """Listener to the passes of stand-ins."""

    def begin(self) -> None:
        """Take note of the beginning of a pass."""

    def end(self, operation: str, read: Iterable[Any], written: Iterable[Any], *, is_backward: bool) -> None:
        """Take note of the end of an operation's pass, when its workspace is free again.

        `read` are the kernel's arguments, and in the backward pass what it has kept and the output's gradient;
        `written` are the output and what is kept, and in the backward pass the gradients.
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


def current_operation() -> str:
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
