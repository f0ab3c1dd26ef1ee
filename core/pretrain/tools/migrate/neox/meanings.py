"""Meaning of every setting of GPT-NeoX, 2.0 and later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meaning import read_meanings
from pretrain.tools.migrate.neox import data, model, parallel, training
from pretrain.tools.migrate.neox.objects import OBJECTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Function

MEANINGS: Mapping[str, Meaning] = {**read_meanings("neox"), **OBJECTS}
"""By name with underscores; a key of an object by its path, "optimizer.params.lr"."""

_PARTS = (model, data, training, parallel)

FUNCTIONS: Mapping[str, Function] = {key: found for part in _PARTS for key, found in part.FUNCTIONS.items()}
"""By key of the recipe."""

KEY_BY_KEY = {
    *("bf16", "data_types", "fp16", "optimizer", "optimizer.params"),
    *("zero_optimization", "zero_optimization.offload_optimizer", "zero_optimization.offload_param"),
}
"""Objects of which every key has a meaning of its own, so that another key is a mistake."""


def meaning_of(name: str) -> Meaning | None:
    """Return the meaning of a setting, or of the object that holds it; None for a name that GPT-NeoX does not have."""
    while name not in MEANINGS and "." in name:
        name = name.rpartition(".")[0]
        if name in KEY_BY_KEY:
            return None
    return MEANINGS.get(name)
