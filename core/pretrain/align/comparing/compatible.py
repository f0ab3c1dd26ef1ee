"""Checks that two recordings are of one training, before their numbers are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import RunError
from pretrain.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.align.reading.recording import Recording

_SECTIONS = ("model", "optimizer")
_KEYS = (("train", "global_batch_size"), ("train", "seed"), ("train", "calculate_per_token_loss"))
_SHOWN = 4
_UNKNOWN = object()
_OF_BF16 = 2.0**-8
"""Relative difference of weights that one side has in bf16."""


def require_compatible(sides: Sequence[Recording]) -> list[str]:
    """Check that model, optimizer, steps, recorded positions and samples are the same.

    Returns:
        notes for the user: keys that one side's version of pretrain alone knows.

    Raises:
        RunError: they are not, and what differs.
    """
    differing, notes = differing_keys(*(side.manifest["recipe"] for side in sides))
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
    return f"the sides train different things: {shown}.\nGive both the same model, optimizer, batch and --steps."


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the keys that must be the same and are not, and notes about keys that one version alone knows.

    A key that a recipe lacks was not known to the version that recorded it: it counts as this version's default.

    Args:
        first: one side's recipe.
        second: the other's.
    """
    keys = dict.fromkeys((section, key) for section in _SECTIONS for key in {**first[section], **second[section]})
    differing, notes = [], []
    for section, key in [*keys, *_KEYS]:
        defaults = getattr(Recipe.model_fields[section].annotation, "model_fields", {})
        values = [
            recipe[section].get(key, defaults[key].default if key in defaults else _UNKNOWN)
            for recipe in (first, second)
        ]
        if _UNKNOWN in values:
            notes.append(f"{section}.{key} is a key of one side's version of pretrain alone: it was not compared")
        elif values[0] != values[1]:
            differing.append(f"{section}.{key} {values[0]} and {values[1]}")
    return differing, notes


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


def require_same_weights(differing: Sequence[str], only_one: Sequence[str]) -> None:
    """Check that the weights before the first step were the same.

    Args:
        differing: names of those that are not.
        only_one: names of those that only one side has.

    Raises:
        RunError: some are not.
    """
    if not differing and not only_one:
        return
    names = [*only_one, *differing]
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    msg = (
        f"the sides begin with different weights: {shown}.\n"
        "Give both the same --checkpoint, or let the second take the first one's (leave out --checkpoint-against)."
    )
    raise RunError(msg)


def allowed_at_start(dtypes: Sequence[str]) -> float:
    """Return the relative difference of weights that the dtypes of both sides explain."""
    return 0.0 if len(set(dtypes)) == 1 else _OF_BF16
