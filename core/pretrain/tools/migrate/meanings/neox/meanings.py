"""Meaning of every setting of GPT-NeoX, 2.0 and later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.neox.architecture import ARCHITECTURE
from pretrain.tools.migrate.meanings.neox.corpora import CORPORA
from pretrain.tools.migrate.meanings.neox.deepspeed_objects import OBJECTS
from pretrain.tools.migrate.meanings.neox.elsewhere import ELSEWHERE
from pretrain.tools.migrate.meanings.neox.outputs import OUTPUTS
from pretrain.tools.migrate.meanings.neox.placement import PLACEMENT
from pretrain.tools.migrate.meanings.neox.steps import STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.meanings.meaning import Meaning

TABLES = (ARCHITECTURE, CORPORA, STEPS, PLACEMENT, OUTPUTS, ELSEWHERE, OBJECTS)

MEANINGS: Mapping[str, Meaning] = {name: meaning for table in TABLES for name, meaning in table.items()}
"""By name with underscores; a key of an object by its path, "optimizer.params.lr"."""

KEY_BY_KEY = {
    "bf16",
    "data_types",
    "fp16",
    "optimizer",
    "optimizer.params",
    "zero_optimization",
    "zero_optimization.offload_optimizer",
    "zero_optimization.offload_param",
}
"""Objects of which every key has a meaning of its own, so that another key is a mistake."""


def meaning_of(name: str) -> Meaning | None:
    """Return the meaning of a setting, or of the object that holds it.

    Args:
        name: with underscores; a key of an object by its path.

    Returns:
        None for a name that GPT-NeoX does not have.
    """
    if name in MEANINGS:
        return MEANINGS[name]
    while "." in name:
        name = name.rpartition(".")[0]
        if name in KEY_BY_KEY:
            return None
        if name in MEANINGS:
            return MEANINGS[name]
    return None
