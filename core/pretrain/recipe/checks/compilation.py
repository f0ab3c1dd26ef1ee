"""Limits of compiled layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.problem import Problem
from pretrain.recipe.sections.kernels import COMPILED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe.recipe import Recipe

_KEY = "kernels.compile"


def problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield what does not go with `kernels.compile: layer`."""
    if recipe.kernels.compile == "none":
        return
    if recipe.engine.name != "megatron":
        yield Problem(_KEY, f"layer needs engine.name: megatron; with {recipe.engine.name} it was not tested.")
    if recipe.train.deterministic_mode:
        yield Problem(_KEY, "layer does not go with train.deterministic_mode: compiled sums may not be reproducible.")
    if recipe.parallel.overlap_param_gather:
        yield Problem(_KEY, "layer does not go with parallel.overlap_param_gather, which hooks into every module.")
    for key in ("hidden_dropout", "attention_dropout"):
        if getattr(recipe.model, key):
            yield Problem(
                _KEY, f"layer needs model.{key}: 0. Compiled code draws its own random numbers, not the ranks'."
            )
    for operation in COMPILED:
        if getattr(recipe.kernels, operation) not in {"auto", "reference"}:
            yield Problem(f"kernels.{operation}", "must be auto or reference with kernels.compile: layer.")
