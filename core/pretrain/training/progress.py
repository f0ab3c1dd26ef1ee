"""How far a training is."""

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
        blend: which token files are read since when, where `data.index` is native (pretrain.data.samples.native.phase);
            with `consumed_samples` it says how many samples of each have been read.
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
        """Read what `to_mapping` gave."""
        names = ("iteration", "consumed_samples", "skipped_iterations")
        return cls(
            **{name: int(counters[name]) for name in names}, blend=counters.get("blend"), order=counters.get("order")
        )
