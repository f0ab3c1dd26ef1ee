"""Layers cut into pipeline stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.problem import Problem
from pretrain.recipe.stages import StagesError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe.recipe import Recipe


def problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield problems of the division into stages and of recomputation in their chunks."""
    try:
        layers = recipe.layers_of_chunks
    except StagesError as error:
        yield Problem(error.path, error.text)
        return
    if recipe.recompute.granularity == "full":
        yield from _recomputed(recipe, layers)


def _recomputed(recipe: Recipe, layers: tuple[int, ...]) -> Iterator[Problem]:
    """Yield a problem if num_layers does not divide a chunk: megatron-core's uniform method would exceed it."""
    path, recomputed = "recompute.num_layers", recipe.recompute.num_layers
    odd = next((number for number in layers if number % recomputed), None)
    if recomputed > max(layers):
        yield Problem(path, f"{recomputed} is more than the {max(layers)} layers of one stage.")
    elif recipe.recompute.method == "uniform" and odd is not None:
        yield Problem(
            path, f"{recomputed} does not divide the {odd} layers of a stage; recompute.method: block takes any number."
        )
