"""Arguments with which Megatron-LM's pretrain_gpt.py trains what a recipe says."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.recipe.checks.effect import without_effect
from pretrain.recipe.keys import walk
from pretrain.recipe.recipe import Recipe
from pretrain.recipe.section import Section
from pretrain.recipe.shown import shown
from pretrain.tools.migrate.to_megatron import flags_of_layout, flags_of_length, flags_of_model, flags_of_text
from pretrain.tools.migrate.to_megatron.answer import NOTHING, Answer
from pretrain.tools.migrate.to_megatron.single_flags import answer_of, single_flags, value_of
from pretrain.tools.migrate.to_megatron.without_flag import WITHOUT_FLAG

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

    from pretrain.tools.migrate.to_megatron.answer import Function, Words

FUNCTIONS: Mapping[str, Function] = {
    **flags_of_model.FUNCTIONS,
    **flags_of_text.TEXT_FUNCTIONS,
    **flags_of_length.LENGTH_FUNCTIONS,
    **flags_of_layout.FUNCTIONS,
}
"""Functions by the key whose flags they return, for keys that one flag alone does not give."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of pretrain_gpt.py.

    Attributes:
        words: flags and values.
        text: the same for a shell, one flag with its values a line.
        left_out: for each key that has no flag, or whose flag says less: "section.key=value: what changes.".
    """

    words: tuple[str, ...]
    text: str
    left_out: tuple[str, ...]


def arguments_of(recipe: Recipe) -> Arguments:
    """Return the arguments with which today's Megatron-LM trains the same model.

    A flag is written where Megatron-LM's default is not the recipe's value, or where it has none. Keys without effect
    in this recipe are passed over.
    """
    idle = frozenset(without_effect(recipe))
    flags: list[Words] = []
    left_out: list[str] = []
    for key, field in walk(Recipe):
        answer = _answer(recipe, key, field, idle)
        flags += answer.flags
        if answer.change:
            left_out.append(f"{key}{_value(recipe, key)}: {answer.change}.")
    words = tuple(word for flag in flags for word in flag)
    return Arguments(words, " \\\n".join(shlex.join(flag) for flag in flags) + "\n", tuple(left_out))


def _answer(recipe: Recipe, key: str, field: FieldInfo, idle: frozenset[str]) -> Answer:
    if key in FUNCTIONS:
        return FUNCTIONS[key](recipe)
    if any(around in idle for around in _with_sections(key)):
        return NOTHING
    if key in WITHOUT_FLAG:
        return NOTHING if _is_default(value_of(recipe, key), field) else Answer(change=WITHOUT_FLAG[key])
    name = single_flags().get(key)
    return NOTHING if name is None else answer_of(recipe, key, name)


def _value(recipe: Recipe, key: str) -> str:
    """Return "=value" as an override has it; nothing for a whole section."""
    value = value_of(recipe, key)
    if isinstance(value, Section):
        return ""
    return f"={str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else shown(value)}"


def _is_default(value: Any, field: FieldInfo) -> bool:
    return bool(value == field.get_default())


def _with_sections(key: str) -> Iterator[str]:
    """Yield a key and the sections around it."""
    while key:
        yield key
        key = key.rpartition(".")[0]
