"""All checks, and keys without effect: setting one is an error, because its author expects an effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.recipe.checks.deepspeed import deepspeed_problems
from pretrain.recipe.checks.rules import RULES
from pretrain.recipe.checks.shape import shape_problems, stage_problems
from pretrain.recipe.checks.training import batch_problems, compilation_problems, input_problems, schedule_problems
from pretrain.recipe.problem import Problem
from pretrain.recipe.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe.checks.rules import Rule
    from pretrain.recipe.recipe import Recipe

_OFF = {False, "auto", "none"}


def problems_of(recipe: Recipe) -> list[Problem]:
    """Return the problems of all checks, the most basic first."""
    return [
        *shape_problems(recipe),
        *stage_problems(recipe),
        *input_problems(recipe),
        *batch_problems(recipe),
        *schedule_problems(recipe),
        *deepspeed_problems(recipe),
        *compilation_problems(recipe),
        *effect_problems(recipe),
    ]


def without_effect(recipe: Recipe) -> list[str]:
    """Return the keys that do nothing in this recipe, given or not, as "section.key"."""
    return [path for path, _ in _idle(recipe)]


def effect_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield the keys that are given without effect. A value that means off (false, 0, auto, none) is allowed."""
    idle = _idle(recipe)
    paths = {path for path, _ in idle}
    for path, rule in idle:
        *sections, key = path.split(".")
        around = {".".join(sections[:depth]) for depth in range(1, len(sections) + 1)}
        if paths.isdisjoint(around) and not _is_off(_given(recipe, sections, key)):
            yield Problem(path, f"no effect here; it needs {rule.needs}.", rule.decided_by)


def _idle(recipe: Recipe) -> list[tuple[str, Rule]]:
    return [(path, rule) for rule in RULES if not rule.holds(recipe) for path in rule.keys]


def _given(recipe: Recipe, sections: list[str], key: str) -> Any:
    """Return the value of a key, None if it was not given."""
    section: Section = recipe
    for name in sections:
        section = getattr(section, name)
    return getattr(section, key) if key in section.model_fields_set else None


def _is_off(value: Any) -> bool:
    if isinstance(value, Section):
        return all(_is_off(getattr(value, key)) for key in value.model_fields_set)
    return value is None or (not isinstance(value, dict) and value in _OFF)
