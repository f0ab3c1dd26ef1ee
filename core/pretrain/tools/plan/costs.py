"""Work of a step: FLOPs and bytes of its operations, and messages between ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    """Work of one step of a rank, in pieces whose sum is the step's.

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
