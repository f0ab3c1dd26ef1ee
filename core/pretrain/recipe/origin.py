"""Source of a recipe, and notices of its reader; not part of the data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AccumulationSteps:
    """Micro-batches per step that a DeepSpeed file states; in a recipe they follow from the ranks.

    Attributes:
        place: "ds_config.json:3: gradient_accumulation_steps".
        steps: how many.
    """

    place: str
    steps: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a recipe.

    Attributes:
        source: the file.
        notices: one line for each thing that was understood in another way than it was written.
        accumulation_steps: the micro-batches per step that the layout must have; None without a DeepSpeed file.
    """

    source: str = "recipe"
    notices: tuple[str, ...] = ()
    accumulation_steps: AccumulationSteps | None = None
