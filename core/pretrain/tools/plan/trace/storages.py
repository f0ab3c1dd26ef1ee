"""Records when each storage of fake tensors is allocated and freed, and where in the step."""

from __future__ import annotations

import weakref
from bisect import bisect_left, insort
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import torch

from pretrain.plugins.stand_in import current_operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GRANULARITY = 512
"""A device's allocator rounds up to a multiple of so many bytes: kMinBlockSize of torch's CUDACachingAllocator."""


@dataclass(slots=True, eq=False)
class MemoryBlock:
    """Memory of one storage."""

    size: int  # bytes, rounded as the allocator does
    on_host: bool
    place: StepPlace
    born: int  # time of its allocation, counted in allocations and releases
    died: int | None = None  # time of its release; None while it lives
    is_workspace: bool = False  # allocated and freed within one pass of a kernel

    def outlives(self, time: int) -> bool:
        """Say whether it is still allocated after a time."""
        return self.died is None or self.died > time


class Storages:
    """All storages that have been seen, in the order of their allocation; those not on `device` are on the host."""

    def __init__(self, device: torch.device) -> None:
        self.blocks: list[MemoryBlock] = []
        self.now = 0
        self._index = device.index or 0
        self._known: weakref.WeakKeyDictionary[torch.UntypedStorage, MemoryBlock] = weakref.WeakKeyDictionary()

    def see(self, tensor: torch.Tensor, place: StepPlace) -> None:
        """Follow a tensor's storage if it is new; those on torch's device "meta" take no memory."""
        storage = tensor.untyped_storage()
        if storage in self._known or tensor.device.type == "meta":
            return
        size = -(-storage.nbytes() // GRANULARITY) * GRANULARITY
        block = MemoryBlock(size, (tensor.device.index or 0) != self._index, place, self.now)
        self.now += 1
        self.blocks.append(block)
        self._known[storage] = block
        weakref.finalize(storage, self._free, block)

    def block_of(self, tensor: torch.Tensor) -> MemoryBlock | None:
        """Return the block of a tensor; None for one that has not been seen."""
        return self._known.get(tensor.untyped_storage())

    def mark_workspace(self, begin: int) -> None:
        """Mark the blocks from number `begin` on that are free again as a kernel's workspace."""
        for block in self.blocks[begin:]:
            block.is_workspace = block.died is not None

    def _free(self, block: MemoryBlock) -> None:
        block.died = self.now
        self.now += 1


@dataclass(frozen=True, slots=True)
class StepPlace:
    """A place in the traced program."""

    step: int = 0  # 0 while the engine is built, then the number of the step
    phase: str = "model"  # "model" while the engine is built; then "gradients", "forward-backward", "optimizer"
    micro_batch: int = 0  # the last one whose forward pass has begun, from 1; 0 before
    module: str = ""  # of the forward pass, "decoder.layers.0.mlp"; "" elsewhere
    operation: str = ""  # whose kernel is being called; "" outside of kernels
    is_backward: bool = False
    is_accumulation: bool = False  # where a weight's gradient has arrived: hooks of the engine reduce it

    @property
    def is_in_pass(self) -> bool:
        """Inside the passes of the step's micro-batches."""
        return self.phase == "forward-backward"

    @property
    def is_forward(self) -> bool:
        """Inside a forward pass."""
        return self.is_in_pass and not self.is_backward


class StepPosition:
    """The current place, moved by the plan, the engine's phases and the hooks of modules."""

    def __init__(self) -> None:
        self._at = StepPlace()
        self._places: dict[tuple[StepPlace, str, str, str | None], StepPlace] = {}
        self._modules: list[str] = []

    def here(self) -> StepPlace:
        """Return the current place; equal places are one object."""
        module = self._modules[-1] if self._modules else ""
        node = torch._C._current_autograd_node()  # noqa: SLF001  torch has no public name for it
        kind = None if node is None else type(node).__name__
        key = self._at, module, current_operation(), kind
        place = self._places.get(key)
        if place is None:
            made = replace(self._at, module=module, operation=key[2], is_backward=kind is not None)
            self._places[key] = place = replace(made, is_accumulation=kind == "AccumulateGrad")
        return place

    def begin_step(self, step: int) -> None:
        """Move to the beginning of a step."""
        self._at = StepPlace(step, "gradients")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Enter a phase of the step for a with-block: `pretrain.report.timers.PhaseTimers.phase`."""
        before = self._at
        self._at = replace(self._at, phase=name)
        yield
        self._at = replace(before, micro_batch=self._at.micro_batch)

    def follow(self, model: torch.nn.Module) -> None:
        """Follow the forward passes of a model's modules; that of the model counts micro-batches."""
        model.register_forward_pre_hook(self._begin_micro_batch)
        for name, module in model.named_modules():
            if name:
                module.register_forward_pre_hook(partial(self._enter, name))
                module.register_forward_hook(self._leave, always_call=True)

    def _enter(self, name: str, *_: object) -> None:
        self._modules.append(name)

    def _leave(self, *_: object) -> None:
        if self._modules:
            self._modules.pop()

    def _begin_micro_batch(self, *_: object) -> None:
        self._at = replace(self._at, micro_batch=self._at.micro_batch + 1)


MIB = 2**20
SMALL = MIB  # largest block of the small pool: kSmallSize
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
LARGE_SEGMENT = 20 * MIB  # kLargeBuffer
LEAST_OWN_SEGMENT = 10 * MIB  # smallest block with a segment of its own: kMinLargeAlloc
ROUNDING = 2 * MIB  # kRoundLarge
LEAST_REST = 512  # smallest rest of a small block that is split off: kMinBlockSize; of a large one it exceeds `SMALL`


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
        return self.before is None and self.after is None


class CachingAllocator:
    """Segments of a device, and their free parts, by the rules of torch's CUDACachingAllocator."""

    # Source: c10/cuda/CUDACachingAllocator.cpp, default settings, which torch's extensions for other devices follow.
    # Blocks up to 1 MiB come from segments of 2 MiB; larger ones below 10 MiB from segments of 20 MiB; others from
    # segments of their own, rounded up to 2 MiB. The smallest free block that is large enough is taken, and split. Free
    # neighbours are merged. Nothing is returned to the device while there is room (until `limit` bytes, if it is
    # given); where there is none, segments that are free as a whole are (release_cached_blocks).

    def __init__(self, limit: int | None = None) -> None:
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
                free = self._free[other.is_small]
                del free[bisect_left(free, (other.size, other.number))]
                part = _join(other, part) if other is part.before else _join(part, other)
        part.is_free = True
        self._put(part)

    def _segment(self, size: int, *, is_small: bool) -> _Part:
        if is_small:
            whole = SMALL_SEGMENT
        else:
            whole = LARGE_SEGMENT if size < LEAST_OWN_SEGMENT else -(-size // ROUNDING) * ROUNDING
        if self._limit is not None and self.reserved + whole > self._limit:
            for kind, free in self._free.items():
                self.reserved -= sum(size for size, _, part in free if part.is_segment)
                self._free[kind] = [entry for entry in free if not entry[2].is_segment]
        self.reserved += whole
        self.most_reserved = max(self.most_reserved, self.reserved)
        return _Part(whole, is_small)

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


def _join(first: _Part, second: _Part) -> _Part:
    first.size += second.size
    first.after = second.after
    if second.after is not None:
        second.after.before = first
    return first


def reserved(blocks: Iterable[MemoryBlock], limit: int | None = None) -> int:
    """Return the most bytes that are reserved over all allocations and releases of a device's blocks."""
    events = [(block.born, block, True) for block in blocks if not block.on_host]
    events += [(block.died, block, False) for _, block, _ in events if block.died is not None]
    allocator, parts = CachingAllocator(limit), dict[int, _Part]()
    for _, block, begins in sorted(events, key=lambda event: event[0]):
        if begins and block.size:
            parts[id(block)] = allocator.allocate(block.size)
        elif block.size:
            allocator.free(parts.pop(id(block)))
    return allocator.most_reserved
