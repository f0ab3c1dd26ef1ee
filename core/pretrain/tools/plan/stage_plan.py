"""Plan of one pipeline stage: memory at its peak, and the costs of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PARTS = ("weights", "gradients", "optimizer", "activations", "workspace", "reserve", "process groups")
"""Parts of a device's memory, in the order in which they are shown.

weights: parameters in the training's dtype, and ZeRO-3's gathered ones. gradients: with the buffers in which they are
accumulated and reduced. optimizer: main weights in fp32, moments, and what the update allocates in passing.
activations: everything else of forward and backward passes. workspace: what kernels allocate within one pass.
reserve: what the allocator holds beyond that. process groups: see `pretrain.tools.plan.wording`.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """Memory at one time of the step."""

    at: float  # share of the step's allocations and releases that come before, 0 to 1; no time
    parts: Mapping[str, int]  # bytes of the first five of `PARTS`


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleRow:
    """Memory of all modules of one kind."""

    name: str  # path with a star for the layer's number: "decoder.layers.*.mlp.linear_fc1"
    count: int
    parameters: int
    weights: int  # bytes of these parameters
    activations: int  # bytes that a micro-batch leaves for the backward pass, without recompute and without parts


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan:
    """Plan of the ranks of one pipeline stage."""

    stage: int  # number from 0
    rank: int  # the stage's first rank in the world, which was traced
    layers: str  # of this stage, "12", or "6+6" of its chunks
    parameters: int
    parts: Mapping[str, int]  # bytes on the device at the peak, by `PARTS`
    host_bytes: int  # peak of the tensors in host memory: offloaded state
    peak_at: str  # text that says where in the step the peak is
    micro_batches: int  # that were run; a step has more, which add nothing to the peak
    course: Sequence[Moment]
    modules: Sequence[ModuleRow]
    costs: Costs

    @property
    def peak_bytes(self) -> int:
        """Bytes of the device's memory that the stage takes at its peak, all parts together."""
        return sum(self.parts.values())

    @property
    def most_activations(self) -> int:
        """Most bytes of activations at any time of the course, which need not be the peak."""
        return max((moment.parts.get("activations", 0) for moment in self.course), default=0)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all tensors at the peak: torch's `max_memory_allocated`."""
        return self.peak_bytes - self.parts.get("reserve", 0) - self.parts.get("process groups", 0)


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of an operation on the device."""

    flops: float  # of its matmuls; 0 for all others
    moved: int  # bytes read and written
    dtype: str = ""  # of the operands of matmuls, as a recipe names it ("fp16"), or "fp8"; "" for others


@dataclass(frozen=True, slots=True)
class Message:
    """One call of a collective, or a message to a neighbouring stage."""

    kind: str  # "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send", "receive"
    group: str  # "tensor", "pipeline", "data", "experts", "expert data", "model" or "world"
    size: int
    moved: int  # bytes of the whole tensor, which all ranks have before or after it; of all-to-all: what a rank sends
    overlaps: bool = False  # whether the rank computes on before it waits for it


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Costs of one step of a rank, in parts that add up to the step."""

    forward: Mapping[Operation, float]  # operations of one micro-batch's forward pass, and how often each is called
    backward: Mapping[Operation, float]  # of its backward pass, with recomputed forward passes
    once: Mapping[Operation, float]  # of the rest of the step, whatever the number of micro-batches
    messages: Mapping[Message, float]
    messages_once: Mapping[Message, float]
