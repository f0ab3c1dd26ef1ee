"""Progress of a training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class Progress:
    """Counters since the training began, over all resumed parts; a checkpoint carries them.

    Attributes:
        iteration: optimizer steps, skipped ones and those whose batch was left out included.
        consumed_samples: sequences read, those that were left out included; the position in the data.
        skipped_iterations: steps without an update, because of an fp16 overflow.
        blend: token files and since when they are read, for `data.index: native` (see
            pretrain.data.samples.weighted_interleave); with `consumed_samples` it gives the samples read of each.
        order: number and order of the samples, where `data.index` is megatron (pretrain.data.samples.megatron_order).
        left_out: first and last iteration of each stretch that a rollback has left out after a loss spike.
        equal_at: iteration after which `train.check_replicas_interval` last found equal replicas; None before.
        losses: of the last steps, in nats per token, with which `train.loss_spike` compares; empty if it is off.
    """

    iteration: int = 0
    consumed_samples: int = 0
    skipped_iterations: int = 0
    blend: dict[str, Any] | None = None
    order: dict[str, Any] | None = None
    left_out: list[list[int]] = field(default_factory=list)
    equal_at: int | None = None
    losses: list[float] = field(default_factory=list)

    def to_mapping(self) -> dict[str, Any]:
        """Return the counters by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_mapping(cls, counters: Mapping[str, Any]) -> Progress:
        """Return the progress of a mapping that `to_mapping` made."""
        names = ("iteration", "consumed_samples", "skipped_iterations")
        return cls(
            **{name: int(counters[name]) for name in names},
            blend=counters.get("blend"),
            order=counters.get("order"),
            left_out=[[int(number) for number in stretch] for stretch in counters.get("left_out", ())],
            equal_at=counters.get("equal_at"),
            losses=[float(loss) for loss in counters.get("losses", ())],
        )

    def go_back(self, earlier: Progress) -> None:
        """Take over an earlier progress, in place; the stretches that were left out since then stay."""
        left_out = self.left_out
        for each in dataclasses.fields(self):
            if each.name != "losses":
                setattr(self, each.name, getattr(earlier, each.name))
        self.losses[:] = earlier.losses  # the spike watch holds the list
        self.left_out = earlier.left_out + [stretch for stretch in left_out if stretch not in earlier.left_out]
