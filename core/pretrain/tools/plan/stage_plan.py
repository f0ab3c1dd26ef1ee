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
    """Memory at one time of the step.

    Attributes:
        at: share of the step's allocations and releases that come before, 0 to 1; no time.
        parts: bytes of the first five of `PARTS`.
    """

    at: float
    parts: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleRow:
    """Memory of all modules of one kind.

    Attributes:
        name: path with a star for the layer's number: "decoder.layers.*.mlp.linear_fc1".
        count: modules of this rank.
        parameters: of all of them.
        weights: bytes of these parameters.
        activations: bytes that their forward passes of one micro-batch leave for the backward pass, without recompute;
            those of a module's parts are counted in the parts.
    """

    name: str
    count: int
    parameters: int
    weights: int
    activations: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan:
    """Plan of the ranks of one pipeline stage.

    Attributes:
        stage: number from 0.
        rank: the stage's first rank in the world, which was traced.
        layers: of this stage, "12", or "6+6" of its chunks.
        parameters: of this rank.
        parts: bytes on the device at the peak, by `PARTS`.
        host_bytes: peak of the tensors in host memory: offloaded state.
        peak_at: text that says where in the step the peak is.
        micro_batches: that were run; a step has more, which add nothing to the peak.
        course: memory over the traced step.
        modules: by kind.
        costs: of a step.
    """

    stage: int
    rank: int
    layers: str
    parameters: int
    parts: Mapping[str, int]
    host_bytes: int
    peak_at: str
    micro_batches: int
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
    """One call of an operation on the device.

    Attributes:
        flops: of its matmuls; 0 for all others.
        moved: bytes read and written.
        dtype: of the matmuls, as a recipe names it ("fp16"); "" for others.
    """

    flops: float
    moved: int
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One call of a collective, or a message to a neighbouring stage.

    Attributes:
        kind: "all-reduce", "all-gather", "reduce-scatter", "broadcast", "send", "receive".
        group: "tensor", "pipeline", "data", "model" or "world".
        size: ranks of the group.
        moved: bytes of the whole tensor, which all ranks have before or after it.
        overlaps: whether the rank computes on before it waits for it.
    """

    kind: str
    group: str
    size: int
    moved: int
    overlaps: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Costs of one step of a rank, in parts that add up to the step.

    Attributes:
        forward: operations of one micro-batch's forward pass, and how often each is called.
        backward: of its backward pass, with recomputed forward passes.
        once: of the rest of the step, whatever the number of micro-batches.
        messages: of one micro-batch.
        messages_once: of the rest of the step.
    """

    forward: Mapping[Operation, float]
    backward: Mapping[Operation, float]
    once: Mapping[Operation, float]
    messages: Mapping[Message, float]
    messages_once: Mapping[Message, float]
