"""Layers cut into pipeline stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.problem import Problem
from pretrain.recipe.stages import StagesError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe.recipe import Recipe


def problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield why the layers cannot be cut so, or what no chunk of them can do."""
    try:
        layers = recipe.layers_of_chunks
    except StagesError as error:
        yield Problem(error.path, error.text)
        return
    recomputed = recipe.recompute.num_layers
    if recipe.recompute.granularity == "full" and recomputed > max(layers):
        yield Problem("recompute.num_layers", f"{recomputed} is more than the {max(layers)} layers of one stage.")
