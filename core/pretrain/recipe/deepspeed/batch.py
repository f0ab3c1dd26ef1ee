"""Micro batches of a step, and how often DeepSpeed would print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.recipe.origin import AccumulationSteps
from pretrain.recipe.shown import shown

if TYPE_CHECKING:
    from pretrain.recipe.deepspeed.translation import Translation


def accumulation_steps(translation: Translation, path: str, value: Any) -> None:
    """gradient_accumulation_steps: checked as soon as the number of ranks is known (recipe/layout.py)."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        translation.refuse(path, f"{shown(value)} is not a whole number of 1 or more.")
        return
    translation.accumulation_steps = AccumulationSteps(translation.file.place(path), value)


def steps_per_print(translation: Translation, path: str, value: Any) -> None:
    """steps_per_print: DeepSpeed's own log is off, and the recipe has logging.log_interval."""
    translation.notice(path, f"{shown(value)} is not used; logging.log_interval says how often metrics are shown.")
