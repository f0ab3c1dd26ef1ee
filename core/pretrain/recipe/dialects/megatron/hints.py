"""Hints for a flag or a key of another program: its name here, or why nothing needs it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pretrain.recipe.dialects.megatron.here import BUILD_OPTIONS, HERE, OPTIONS, Here
from pretrain.recipe.dialects.megatron.not_needed import BUILD_NOT_NEEDED, NOT_NEEDED
from pretrain.recipe.keys import keys_of_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def flag_of_run(flag: str, values: Sequence[str] = ()) -> str:
    """Return the equivalent in `pretrain run` of a flag of a training script; empty for an unknown one.

    Args:
        flag: "--train-iters".
        values: what follows it.
    """
    name = _name(flag)
    if name in NOT_NEEDED:
        return f"not needed: {NOT_NEEDED[name]}"
    if name in OPTIONS:
        return f"here it is {OPTIONS[name]}."
    found = HERE.get(name) or _same_name(name)
    if found is None:
        return ""
    note = f" ({found.note})" if found.note else ""
    return f"here it is --set {shlex.quote(_setting(found, values))}{note}."


def flag_of_build(flag: str) -> str:
    """Return the equivalent in `pretrain data build` of a flag of preprocess_data.py; empty for an unknown one."""
    name = _name(flag)
    if name in BUILD_OPTIONS:
        return f"here it is {BUILD_OPTIONS[name]}."
    return f"not needed: {BUILD_NOT_NEEDED[name]}" if name in BUILD_NOT_NEEDED else ""


def key_of_recipe(path: str, given: object) -> str:
    """Return the equivalent of an unknown key of a recipe, "data.data_impl"; empty if there is none.

    Args:
        path: the key.
        given: its value.
    """
    key = path.rpartition(".")[2]
    name = _name(key)
    if name in NOT_NEEDED:
        return f" It is not needed: {NOT_NEEDED[name]}"
    if name in OPTIONS:
        return f" It is not a key of a recipe: give pretrain {OPTIONS[name]}."
    found = HERE.get(name) or (_same_name(name) if name != key else None)
    if found is None:
        return ""
    key, equals, value = found.key.partition("=")
    if given is False and equals:  # the opposite of the switch, where the key has one
        opposite = {"true": "false", "false": "true"}.get(value)
        return f" It is written {key}: {opposite}." if opposite else " It is false: leave it out."
    note = f" ({found.note})" if found.note else ""
    value = value or found.values.get(str(given), "")
    return f" It is written {key}{': ' * bool(value)}{value}{note}."


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_").lower()


_ONE_WORD = {"activation", "finetune", "hysteresis", "load", "lr", "normalization", "save", "seed", "split"}
"""Flags of one word that are the same as a key; other words, such as --device, mean something else elsewhere."""


def _same_name(name: str) -> Here | None:
    """Return the key, no section, of the same name."""
    if "_" not in name and name not in _ONE_WORD:
        return None
    known = keys_of_recipe()
    sections = {path.rpartition(".")[0] for path in known}
    same = [path for path in known if path.rpartition(".")[2] == name and path not in sections]
    return Here(same[0]) if same else None


def _setting(found: Here, values: Sequence[str]) -> str:
    """Return "section.key=value" with the values given; a flag without a value is a switch."""
    if "=" in found.key:
        return found.key
    if found.key == "data.path" and len(values) > 1:
        return f"data.blend=[{', '.join(_parts(values))}]"
    return f"{found.key}={' '.join(found.values.get(value, value) for value in values) or 'true'}"


def _parts(values: Sequence[str]) -> Iterator[str]:
    """Yield the parts of a blend: weight, path, weight, path, ...; or paths alone, whose weights are to be written."""
    weights, paths = (values[::2], values[1::2]) if _is_number(values[0]) else (["WEIGHT"] * len(values), values)
    for weight, path in zip(weights, paths, strict=False):
        yield f"{{weight: {weight}, path: {path}}}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
