"""The complete recipe as YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from pretrain.recipe.checks.effect import without_effect
from pretrain.recipe.document import Document

if TYPE_CHECKING:
    from pretrain.recipe.recipe import Recipe


def to_yaml(recipe: Recipe) -> str:
    """Return the recipe with every default written out; loading the text describes the same run.

    Keys that have no effect in this recipe are left out, because loading refuses them.
    """
    document = Document(recipe.source, recipe.model_dump(mode="json", exclude_none=True))
    for path in without_effect(recipe):
        document.remove(path)
    return yaml.safe_dump(document.data, sort_keys=False, allow_unicode=True, width=120)
