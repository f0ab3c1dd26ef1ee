"""Arguments of `--set` that make a chosen layout of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.recipe import Recipe
    from pretrain.tools.plan.search.choices import Choice

PATHS = (
    "parallel.tensor_model_parallel_size",
    "parallel.pipeline_model_parallel_size",
    "parallel.virtual_pipeline_model_parallel_size",
    "parallel.pipeline_layers",
    "parallel.num_layers_in_first_pipeline_stage",
    "parallel.num_layers_in_last_pipeline_stage",
    "parallel.sequence_parallel",
    "parallel.use_distributed_optimizer",
    "engine.zero.stage",
    "train.micro_batch_size",
    "recompute.granularity",
    "recompute.method",
    "recompute.num_layers",
)
"""Keys that a choice may change. Others that lose their effect by it are left out as the recipe is read."""


def set_arguments(recipe: Recipe, choice: Choice) -> tuple[str, ...]:
    """Return "section.key=value" for every key in which the recipe with the choice differs from the recipe."""
    chosen = choice.recipe(recipe)
    values = ((path, _value(recipe, path), _value(chosen, path)) for path in PATHS)
    only_full = {"recompute.method", "recompute.num_layers"} if choice.recompute != "full" else set()
    return tuple(
        f"{path}={_written(after)}" for path, before, after in values if before != after and path not in only_full
    )


def _value(recipe: Recipe, path: str) -> object:
    value: object = recipe
    for key in path.split("."):
        value = getattr(value, key)
    return value


def _written(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
