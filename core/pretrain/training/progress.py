"""Progress of a training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class Progress:
    """Counters since the training began, over all resumed parts; a checkpoint carries them.

    Attributes:
        iteration: optimizer steps, skipped ones included.
        consumed_samples: sequences trained on; the position in the data.
        skipped_iterations: steps without an update, because of an fp16 overflow.
        blend: token files and since when they are read, for `data.index: native` (see
            pretrain.data.samples.native.phase); with `consumed_samples` it gives the samples read of each.
        order: number and order of the samples, where `data.index` is megatron (pretrain.data.samples.order).
    """

    iteration: int = 0
    consumed_samples: int = 0
    skipped_iterations: int = 0
    blend: dict[str, Any] | None = None
    order: dict[str, Any] | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Return the counters by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_mapping(cls, counters: Mapping[str, Any]) -> Progress:
        """Return the progress of a mapping that `to_mapping` made."""
        names = ("iteration", "consumed_samples", "skipped_iterations")
        return cls(
            **{name: int(counters[name]) for name in names}, blend=counters.get("blend"), order=counters.get("order")
        )
