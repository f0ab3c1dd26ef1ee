"""Replays allocations in a model of torch's caching allocator, which reserves more than it hands out.

The rules are those of torch's CUDACachingAllocator (c10/cuda/CUDACachingAllocator.cpp, default settings), which
torch's extensions for other devices follow: blocks up to 1 MiB come from segments of 2 MiB; larger ones below 10 MiB
from segments of 20 MiB; others from segments of their own, rounded up to 2 MiB. The smallest free block that is large
enough is taken, and split. Free neighbours are merged. Nothing is returned to the device while there is room; where
there is none, segments that are free as a whole are (release_cached_blocks).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pretrain.tools.plan.trace.storages import MemoryBlock

MIB = 2**20
SMALL = MIB
"""Largest block of the small pool: kSmallSize."""
SMALL_SEGMENT = 2 * MIB
"""kSmallBuffer."""
LARGE_SEGMENT = 20 * MIB
"""kLargeBuffer."""
LEAST_OWN_SEGMENT = 10 * MIB
"""Smallest block with a segment of its own: kMinLargeAlloc."""
ROUNDING = 2 * MIB
"""kRoundLarge."""
LEAST_REST = 512
"""Smallest rest of a small block that is split off: kMinBlockSize; of a large one it exceeds `SMALL`."""


@dataclass(slots=True, eq=False)
class _Part:
    """Neighbouring bytes of one segment, free or taken."""

    size: int
    is_small: bool
    before: _Part | None = None
    after: _Part | None = None
    is_free: bool = True
    number: int = 0

    @property
    def is_segment(self) -> bool:
        """True if no other part is in the segment."""
        return self.before is None and self.after is None


class CachingAllocator:
    """Segments of a device, and their free parts.

    Attributes:
        reserved: bytes of all segments now.
        most_reserved: the most that they have been.
    """

    def __init__(self, limit: int | None = None) -> None:
        """Begin without segments.

        Args:
            limit: bytes at which free segments are returned first; None: the device has room for all.
        """
        self.reserved = self.most_reserved = 0
        self._limit = limit
        self._numbers = count()
        self._free: dict[bool, list[tuple[int, int, _Part]]] = {True: [], False: []}

    def allocate(self, size: int) -> _Part:
        """Take a part of `size` bytes, of a new segment if no free part is large enough."""
        is_small = size <= SMALL
        free = self._free[is_small]
        place = bisect_left(free, (size, 0))
        part = free.pop(place)[2] if place < len(free) else self._segment(size, is_small=is_small)
        part.is_free = False
        self._split(part, size)
        return part

    def free(self, part: _Part) -> None:
        """Give a part back, joined with its free neighbours."""
        for other in (part.before, part.after):
            if other is not None and other.is_free:
                self._take_out(other)
                part = _join(other, part) if other is part.before else _join(part, other)
        part.is_free = True
        self._put(part)

    def _segment(self, size: int, *, is_small: bool) -> _Part:
        if is_small:
            whole = SMALL_SEGMENT
        else:
            whole = LARGE_SEGMENT if size < LEAST_OWN_SEGMENT else -(-size // ROUNDING) * ROUNDING
        if self._limit is not None and self.reserved + whole > self._limit:
            self._return_free_segments()
        self.reserved += whole
        self.most_reserved = max(self.most_reserved, self.reserved)
        return _Part(whole, is_small)

    def _return_free_segments(self) -> None:
        for is_small, free in self._free.items():
            self.reserved -= sum(size for size, _, part in free if part.is_segment)
            self._free[is_small] = [entry for entry in free if not entry[2].is_segment]

    def _split(self, part: _Part, size: int) -> None:
        rest = part.size - size
        if rest < LEAST_REST if part.is_small else rest <= SMALL:
            return
        other = _Part(rest, part.is_small, before=part, after=part.after)
        if part.after is not None:
            part.after.before = other
        part.after, part.size = other, size
        self._put(other)

    def _put(self, part: _Part) -> None:
        part.number = next(self._numbers)
        insort(self._free[part.is_small], (part.size, part.number, part))

    def _take_out(self, part: _Part) -> None:
        free = self._free[part.is_small]
        del free[bisect_left(free, (part.size, part.number))]


def _join(first: _Part, second: _Part) -> _Part:
    first.size += second.size
    first.after = second.after
    if second.after is not None:
        second.after.before = first
    return first


def reserved(blocks: Iterable[MemoryBlock], limit: int | None = None) -> int:
    """Return the most bytes that are reserved over all allocations and releases of a device's blocks.

    Args:
        blocks: of the device; those of the host do not count.
        limit: as for `CachingAllocator`; blocks that do not fit are allocated nevertheless.
    """
    events = [(block.born, block, True) for block in blocks if not block.on_host]
    events += [(block.died, block, False) for _, block, _ in events if block.died is not None]
    allocator, parts = CachingAllocator(limit), dict[int, _Part]()
    for _, block, begins in sorted(events, key=lambda event: event[0]):
        if begins and block.size:
            parts[id(block)] = allocator.allocate(block.size)
        elif block.size:
            allocator.free(parts.pop(id(block)))
    return allocator.most_reserved
