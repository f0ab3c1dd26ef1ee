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
    names = ("--steps", "--positions", "the vocabulary")
    sizes = ((side.steps, side.manifest["positions"], side.manifest["vocab_size"]) for side in sides)
    for name, ours, theirs in zip(names, *sizes, strict=True):
        if ours != theirs:
            differing.append(f"{name}: {ours} and {theirs}")
    if differing:
        raise RunError(different(differing))
    _require_same_samples(*(side.samples for side in sides))
    return notes


def different(differing: Sequence[str]) -> str:
    """Return the message about what differs."""
    shown = "; ".join(differing[:_SHOWN])
    return f"the sides train different things: {shown}.\nGive both the same model, optimizer, data, batch and --steps."


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the keys that must be the same and are not, and notes about keys that one version alone knows."""
    # A key that a recipe lacks was not known to the version that recorded it: it counts as this version's default.
    differing, notes = [], []
    for key, ours, theirs in _pairs(first, second, must_be_same=True):
        if _UNKNOWN in (ours, theirs):
            notes.append(f"{key} is a key of one side's version of pretrain alone: it was not compared")
        elif ours != theirs:
            differing.append(f"{key} {ours} and {theirs}")
    return differing, notes


def other_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return a line with the keys that may differ, and do; none where there is no such key."""
    pairs = _pairs(first, second, must_be_same=False)
    found = [line for pair in pairs for line in _differing(*pair)]
    return [f"the recipes differ in {'; '.join(found)}"] if found else []


def _pairs(
    first: Mapping[str, Any], second: Mapping[str, Any], *, must_be_same: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Yield "section.key" and both values; where a recipe lacks it, this version's default, or `_UNKNOWN`."""
    for name in {**first, **second}:
        ours, theirs = first.get(name, {}), second.get(name, {})
        field = Recipe.model_fields.get(name)
        defaults = getattr(field.annotation, "model_fields", {}) if field else {}
        for key in {**ours, **theirs}:
            if must_be_same == (name in _SECTIONS or (name, key) in _KEYS):
                default = defaults[key].default if key in defaults else _UNKNOWN
                yield f"{name}.{key}", ours.get(key, default), theirs.get(key, default)


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
        names = other or [*(first.keys() ^ second.keys())]
        step, sample = min(tuple(map(int, name.split("."))) for name in names)
        msg = (
            f"the sides read different text: step {step}, sample {sample} is the first.\n"
            "Use the same token files, tokenizer, data section, train.seed and length of the training."
        )
        raise RunError(msg)


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
