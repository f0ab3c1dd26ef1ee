"""Refuses to compare recordings of different trainings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import RunError
from pretrain.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pretrain.tools.align.comparing.recording import Recording

_SECTIONS = ("model", "optimizer")
_KEYS = (
    ("train", "global_batch_size"),
    ("train", "seed"),
    ("train", "calculate_per_token_loss"),
    ("data", "reset_position_ids"),
    ("data", "reset_attention_mask"),
)
"""Keys that must be the same besides; the last two are not in the samples' hash."""
_SHOWN = 4
_UNKNOWN = object()
_OF_BF16 = 2.0**-8  # relative difference of weights that one side has in bf16


def require_compatible(sides: Sequence[Recording]) -> list[str]:
    """Check that model, optimizer, steps, recorded positions and samples are the same."""
    first, second = (side.manifest["recipe"] for side in sides)
    differing, notes = differing_keys(first, second)
    notes += other_keys(first, second)
    for name, pair in (
        ("--steps", [side.steps for side in sides]),
        ("--positions", [side.manifest["positions"] for side in sides]),
        ("the vocabulary", [side.manifest["vocab_size"] for side in sides]),
    ):
        if pair[0] != pair[1]:
            differing.append(f"{name}: {pair[0]} and {pair[1]}")
    if differing:
        raise RunError(different(differing))
    _require_same_samples(*(side.samples for side in sides))
    return notes


def different(differing: Sequence[str]) -> str:
    """Return the message about what differs."""
    shown = "; ".join(differing[:_SHOWN])
    return f"the sides train different things: {shown}.\nGive both the same model, optimizer, data, batch and --steps."


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the keys that must be the same and are not, and notes about keys that one version alone knows.

    A key that a recipe lacks was not known to the version that recorded it: it counts as this version's default.
    """
    differing, notes = [], []
    for section, key in [each for each in _keys(first, second) if _must_be_same(*each)]:
        values = [_value(recipe, section, key) for recipe in (first, second)]
        if _UNKNOWN in values:
            notes.append(f"{section}.{key} is a key of one side's version of pretrain alone: it was not compared")
        elif values[0] != values[1]:
            differing.append(f"{section}.{key} {values[0]} and {values[1]}")
    return differing, notes


def other_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return a line with the keys that may differ, and do; none where there is no such key."""
    found = [
        line
        for section, key in _keys(first, second)
        if not _must_be_same(section, key)
        for line in _differing(f"{section}.{key}", *(_value(recipe, section, key) for recipe in (first, second)))
    ]
    return [f"the recipes differ in {'; '.join(found)}"] if found else []


def _keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return section and key of everything that either recipe has."""
    sections = [(name, {**first.get(name, {}), **second.get(name, {})}) for name in {**first, **second}]
    return [(name, key) for name, section in sections for key in section]


def _must_be_same(section: str, key: str) -> bool:
    return section in _SECTIONS or (section, key) in _KEYS


def _value(recipe: Mapping[str, Any], section: str, key: str) -> Any:
    """Return a key's value; where the recipe lacks it, this version's default, or _UNKNOWN."""
    field = Recipe.model_fields.get(section)
    defaults = getattr(field.annotation, "model_fields", {}) if field else {}
    return recipe.get(section, {}).get(key, defaults[key].default if key in defaults else _UNKNOWN)


def _differing(name: str, first: Any, second: Any) -> Iterator[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in {**first, **second}:
            yield from _differing(f"{name}.{key}", first.get(key, _UNKNOWN), second.get(key, _UNKNOWN))
    elif first != second:
        yield f"{name} {_shown(first)} and {_shown(second)}"


def _shown(value: Any) -> str:
    return "none" if value is None or value is _UNKNOWN else str(value)


def _require_same_samples(first: dict[str, str], second: dict[str, str]) -> None:
    other = [name for name in first if second.get(name) != first[name]]
    if other or len(first) != len(second):
        step, _, sample = min(other or [*(first.keys() ^ second.keys())], key=_numbers).partition(".")
        msg = (
            f"the sides read different text: step {step}, sample {sample} is the first.\n"
            "Use the same token files, tokenizer, data section, train.seed and length of the training."
        )
        raise RunError(msg)


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(word) for word in name.split("."))


def require_same_start(differing: Sequence[str], only_one: Sequence[str]) -> None:
    """Check that the weights before the first step were the same."""
    if not differing and not only_one:
        return
    names = [*only_one, *differing]
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    msg = (
        f"the sides start from different weights: {shown}.\n"
        "Give both the same --checkpoint, or let the second take the first one's (leave out --checkpoint-against)."
    )
    raise RunError(msg)


def allowed_at_start(dtypes: Sequence[str]) -> float:
    """Return the relative difference of weights that the dtypes of both sides explain."""
    return 0.0 if len(set(dtypes)) == 1 else _OF_BF16
