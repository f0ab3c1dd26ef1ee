"""What to do with a flag or a key of another program: what it is called here, or why nothing needs it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pretrain.recipe.keys import keys_of_recipe
from pretrain.recipe.megatron.here import BUILD_OPTIONS, HERE, OPTIONS, Here
from pretrain.recipe.megatron.not_needed import BUILD_NOT_NEEDED, NOT_NEEDED

if TYPE_CHECKING:
    from collections.abc import Sequence


def flag_of_run(flag: str, values: Sequence[str] = ()) -> str:
    """Return what a flag of a training script is for `pretrain run`, empty if it is not known.

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
    return f"here it is --set {shlex.quote(_setting(found.key, values))}{note}."


def flag_of_build(flag: str) -> str:
    """Return what a flag of preprocess_data.py is for `pretrain data build`, empty if it is not known."""
    name = _name(flag)
    if name in BUILD_OPTIONS:
        return f"here it is {BUILD_OPTIONS[name]}."
    return f"not needed: {BUILD_NOT_NEEDED[name]}" if name in BUILD_NOT_NEEDED else ""


def key_of_recipe(path: str) -> str:
    """Return what an unknown key of a recipe, "data.data_impl", is here; empty if it is not known either."""
    key = path.rpartition(".")[2]
    name = _name(key)
    if name in NOT_NEEDED:
        return f" It is not needed: {NOT_NEEDED[name]}"
    found = HERE.get(name) or (_same_name(name) if name != key else None)
    if found is None:
        return ""
    note = f" ({found.note})" if found.note else ""
    return f" It is written {found.key.replace('=', ': ')}{note}."


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_").lower()


def _same_name(name: str) -> Here | None:
    """Return the key, no section, of the same name."""
    known = keys_of_recipe()
    sections = {path.rpartition(".")[0] for path in known}
    same = [path for path in known if path.rpartition(".")[2] == name and path not in sections]
    return Here(same[0]) if same else None


def _setting(key: str, values: Sequence[str]) -> str:
    """Return "section.key=value" with the values given; a flag without a value is a switch."""
    if "=" in key:
        return key
    if key == "data.path" and len(values) > 1:  # weight, path, weight, path, ...
        parts = (f"{{weight: {weight}, path: {path}}}" for weight, path in zip(values[::2], values[1::2], strict=False))
        return f"data.blend=[{', '.join(parts)}]"
    return f"{key}={' '.join(values) or 'true'}"
