"""Pieces of a model of which any layout's memory and work are made: one layer, embedding, and the loss's head."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.tools.plan.costs import Message, Operation

    Operations = Counter[Operation]
    Messages = Counter[Message]


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Work of a part of the model for one micro-batch of one sample, and of its update.

    Attributes:
        parameters: of this rank.
        forward: operations of the forward pass.
        attention: those of them between the attention's projections, which selective recompute repeats.
        backward: operations of the backward pass, without recompute.
        fixed: those of both passes whose size does not depend on the samples, such as sums of weights' gradients.
        update: operations of the optimizer.
        sent_forward: messages of the forward pass.
        sent_backward: messages of the backward pass.
        kept: bytes that the forward pass leaves for the backward pass.
        kept_by_attention: those of them that selective recompute does not keep.
    """

    parameters: int = 0
    forward: Operations = field(default_factory=Counter)
    attention: Operations = field(default_factory=Counter)
    backward: Operations = field(default_factory=Counter)
    fixed: frozenset[Operation] = frozenset()
    update: Operations = field(default_factory=Counter)
    sent_forward: Messages = field(default_factory=Counter)
    sent_backward: Messages = field(default_factory=Counter)
    kept: int = 0
    kept_by_attention: int = 0


@dataclass(frozen=True, slots=True)
class Passing:
    """Bytes that a pass takes for a while.

    Attributes:
        first: with a micro-batch of one sample: some, such as the gradient of a weight, are there whatever its size.
        next: of every further sample.
    """

    first: int
    next: int

    def bytes(self, samples: int) -> int:
        """Return the bytes for a micro-batch."""
        return self.first + (samples - 1) * self.next


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """Pieces for one tensor-parallel size, with or without sequence parallelism.

    Attributes:
        layer: a transformer layer.
        embedding: what the first stage has besides.
        head: what the last stage has besides: norm, output layer, loss.
        tied: parameters of the output layer that are the embedding's, of which the last of several stages has a copy.
        passing_in_layer: what a layer's backward pass takes beyond what is kept.
        passing_in_head: what the loss and its backward pass take beyond what is kept.
        entering: bytes of a layer's input.
    """

    layer: Piece
    embedding: Piece
    head: Piece
    tied: int
    passing_in_layer: Passing
    passing_in_head: Passing
    entering: int
