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
    """

    iteration: int = 0
    consumed_samples: int = 0
    skipped_iterations: int = 0

    def to_mapping(self) -> dict[str, int]:
        """Return the counters by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_mapping(cls, counters: Mapping[str, Any]) -> Progress:
        """Read what `to_mapping` gave."""
        return cls(**{field.name: int(counters[field.name]) for field in dataclasses.fields(cls)})
