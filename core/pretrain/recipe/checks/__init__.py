"""Checks across sections: keys that contradict one another, and keys without effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.checks import batch, compilation, deepspeed, effect, inputs, schedule, shape, stages

if TYPE_CHECKING:
    from pretrain.recipe.problem import Problem
    from pretrain.recipe.recipe import Recipe


def problems_of(recipe: Recipe) -> list[Problem]:
    """Return the problems of all checks, the most basic first."""
    return [
        *shape.problems(recipe),
        *stages.problems(recipe),
        *inputs.problems(recipe),
        *batch.problems(recipe),
        *schedule.problems(recipe),
        *deepspeed.problems(recipe),
        *compilation.problems(recipe),
        *effect.problems(recipe),
    ]
