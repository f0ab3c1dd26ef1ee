"""Storages of fake tensors: when each is allocated and freed, and by which part of the step."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from pretrain.tools.plan.trace.place import Place

GRANULARITY = 512
"""Bytes to a multiple of which a device's allocator rounds: kMinBlockSize of torch's CUDACachingAllocator."""


@dataclass(slots=True, eq=False)
class Block:
    """Memory of one storage.

    Attributes:
        size: bytes, rounded as the allocator does.
        on_host: in host memory, not on the device.
        place: where in the step it was allocated.
        born: time of its allocation, counted in allocations and releases.
        died: time of its release; None while it lives.
        is_workspace: allocated and freed within one pass of a kernel.
    """

    size: int
    on_host: bool
    place: Place
    born: int
    died: int | None = None
    is_workspace: bool = False


class Storages:
    """All storages that have been seen, in the order of their allocation."""

    def __init__(self, device: torch.device, granularity: int = GRANULARITY) -> None:
        """Follow storages on a device, and all others as those of the host.

        Args:
            device: of the plan.
            granularity: bytes to a multiple of which allocations are rounded.
        """
        self.blocks: list[Block] = []
        self.now = 0
        self._index = device.index or 0
        self._granularity = granularity
        self._known: weakref.WeakKeyDictionary[torch.UntypedStorage, Block] = weakref.WeakKeyDictionary()

    def see(self, tensor: torch.Tensor, place: Place) -> None:
        """Follow a tensor's storage if it is a new one; those of torch's device "meta" take no memory."""
        storage = tensor.untyped_storage()
        if storage in self._known or tensor.device.type == "meta":
            return
        size = -(-storage.nbytes() // self._granularity) * self._granularity
        block = Block(size, (tensor.device.index or 0) != self._index, place, self.now)
        self.now += 1
        self.blocks.append(block)
        self._known[storage] = block
        weakref.finalize(storage, self._free, block)

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """Return the block of a tensor; None for one that has not been seen."""
        return self._known.get(tensor.untyped_storage())

    def mark_workspace(self, begin: int) -> None:
        """Mark the blocks from a number on that are free again as the workspace of a kernel."""
        for block in self.blocks[begin:]:
            block.is_workspace = block.died is not None

    def _free(self, block: Block) -> None:
        block.died = self.now
        self.now += 1
