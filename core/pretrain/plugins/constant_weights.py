"""What kernels make of weights, kept while the weights do not change: over the micro-batches of a step."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from torch import Tensor

    Made = TypeVar("Made")

_kept: dict[Hashable, tuple[Tensor, object]] | None = None


@contextmanager
def constant_weights(*, micro_batches: int) -> Iterator[None]:
    """Keep what kernels make of weights while this block runs so many micro-batches; of one, nothing is kept.

    No weight may change in the block.
    """
    global _kept  # noqa: PLW0603  autograd calls kernels in threads of its own, which see no context variable
    before, _kept = _kept, {} if micro_batches > 1 else None
    try:
        yield
    finally:
        _kept = before


def made_once(weight: Tensor, kind: Hashable, make: Callable[[], Made]) -> Made:
    """Return what `make` returns; in a block of `constant_weights` that of the first call for the weight and kind.

    A weight that ZeRO-3 gathers for each use is made anew: a kept one would be the memory that its ranks save.
    """
    if _kept is None or hasattr(weight, "ds_tensor"):
        return make()
    key = id(weight), kind
    if key not in _kept:
        _kept[key] = weight, make()  # with the weight, so that no other gets its id
    return _kept[key][1]  # type: ignore[return-value]
