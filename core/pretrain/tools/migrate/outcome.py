"""Outcomes: what became of each setting of a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Place

Fate = Literal["carried over", "replaced", "no effect", "not supported"]
FATES: tuple[Fate, ...] = ("carried over", "replaced", "no effect", "not supported")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One line of the report.

    Attributes:
        fate: the list in which it stands.
        written: the setting as the source writes it: "--num-layers".
        text: the key it became, what replaces it, why it has no effect, or what changes.
        place: where the source states it; None for a default.
        keys: of the recipe that it became.
        note: what is different, of a setting that is carried over.
    """

    fate: Fate
    written: str
    text: str
    place: Place | None = None
    keys: tuple[str, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        """Return "--tensorboard-dir (train.sh:24): TensorBoard's files are in the run directory: --run-dir"."""
        place = "" if self.place is None else f" ({self.place})"
        return f"{self.written}{place}: {self.text}"
