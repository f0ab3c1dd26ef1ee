"""Records when each storage of fake tensors is allocated and freed, and where in the step."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.plugins.stand_in import current_operation

if TYPE_CHECKING:
    from collections.abc import Iterator


GRANULARITY = 512
"""A device's allocator rounds up to a multiple of so many bytes: kMinBlockSize of torch's CUDACachingAllocator."""


@dataclass(slots=True, eq=False)
class MemoryBlock:
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
    place: StepPlace
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
        self.blocks: list[MemoryBlock] = []
        self.now = 0
        self._index = device.index or 0
        self._granularity = granularity
        self._known: weakref.WeakKeyDictionary[torch.UntypedStorage, MemoryBlock] = weakref.WeakKeyDictionary()

    def see(self, tensor: torch.Tensor, place: StepPlace) -> None:
        """Follow a tensor's storage if it is a new one; those of torch's device "meta" take no memory."""
        storage = tensor.untyped_storage()
        if storage in self._known or tensor.device.type == "meta":
            return
        size = -(-storage.nbytes() // self._granularity) * self._granularity
        block = MemoryBlock(size, (tensor.device.index or 0) != self._index, place, self.now)
        self.now += 1
        self.blocks.append(block)
        self._known[storage] = block
        weakref.finalize(storage, self._free, block)

    def block_of(self, tensor: torch.Tensor) -> MemoryBlock | None:
        """Return the block of a tensor; None for one that has not been seen."""
        return self._known.get(tensor.untyped_storage())

    def mark_workspace(self, begin: int) -> None:
        """Mark those blocks from a number on that are free again as a kernel's workspace."""
        for block in self.blocks[begin:]:
            block.is_workspace = block.died is not None

    def _free(self, block: MemoryBlock) -> None:
        block.died = self.now
        self.now += 1


@dataclass(frozen=True, slots=True)
class StepPlace:
    """A place in the traced program.

    Attributes:
        step: 0 while the engine is built, then the number of the step.
        phase: "model" while the engine is built; "gradients" at the beginning of a step; "forward-backward",
            "optimizer".
        micro_batch: the last one whose forward pass has begun, from 1; 0 before.
        module: of the forward pass, "decoder.layers.0.mlp"; "" elsewhere.
        operation: whose kernel is being called; "" outside of kernels.
        is_backward: inside the backward pass.
        is_accumulation: where a weight's gradient has arrived: hooks of the engine reduce it.
    """

    step: int = 0
    phase: str = "model"
    micro_batch: int = 0
    module: str = ""
    operation: str = ""
    is_backward: bool = False
    is_accumulation: bool = False

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
            place = replace(
                self._at,
                module=module,
                operation=key[2],
                is_backward=kind is not None,
                is_accumulation=kind == "AccumulateGrad",
            )
            self._places[key] = place
        return place

    def begin_step(self, step: int) -> None:
        """Move to the beginning of a step."""
        self._at = StepPlace(step, "gradients")

    def move(self, phase: str) -> None:
        """Move to another phase of the construction."""
        self._at = replace(self._at, phase=phase)

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
                module.register_forward_pre_hook(self._enter(name))
                module.register_forward_hook(self._leave, always_call=True)

    def _enter(self, name: str) -> Any:
        def enter(*_: object) -> None:
            self._modules.append(name)

        return enter

    def _leave(self, *_: object) -> None:
        if self._modules:
            self._modules.pop()

    def _begin_micro_batch(self, *_: object) -> None:
        self._at = replace(self._at, micro_batch=self._at.micro_batch + 1)
