"""A recipe becomes arguments, and they become the same recipe again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from pretrain.recipe import load_recipe
from pretrain.tools.migrate.migration import migrate
from pretrain.tools.migrate.setting import MigrateOptions
from pretrain.tools.migrate.sources.script import read_arguments
from pretrain.tools.migrate.to_megatron.arguments import arguments_of
from pretrain.tools.migrate.to_megatron.flags import TARGET
from tools.migrate.to_megatron.expressible import recipes

RECIPES = Path(__file__).parents[4] / "recipes"

if TYPE_CHECKING:
    from pretrain.recipe.recipe import Recipe


@pytest.mark.full
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(recipe=recipes())
def test_arguments_give_the_recipe_back(recipe: Recipe):
    """No value is lost or mistaken on the way."""
    sources = [read_arguments(arguments_of(recipe).text)]
    migration = migrate(sources, MigrateOptions(TARGET, recipe.model_parallel_size))
    assert migration.recipe == recipe
    assert migration.is_complete


DEEPSEEK = (
    *("model.moe_router_score_function=sigmoid", "model.moe_router_enable_expert_bias=true"),
    *("model.moe_router_num_groups=8", "model.moe_router_group_topk=4", "model.moe_router_topk_scaling_factor=2.5"),
    *("model.first_k_dense_replace=3", "model.moe_shared_expert_intermediate_size=768", "model.moe_z_loss_coeff=1e-4"),
)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("mixtral-8x7b", ()), ("qwen3-30b-a3b", ("model.moe_layer_freq=2",)), ("qwen3-30b-a3b", DEEPSEEK)],
)
def test_experts_come_back(name: str, overrides: tuple[str, ...]):
    recipe = load_recipe(RECIPES / f"{name}.yml", overrides)
    migration = migrate([read_arguments(arguments_of(recipe).text)], MigrateOptions(TARGET, 64))
    assert (migration.recipe.model, migration.recipe.parallel) == (recipe.model, recipe.parallel)
