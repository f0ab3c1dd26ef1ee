"""A recipe becomes arguments, and they become the same recipe again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings

from pretrain.tools.migrate.migration import migrate
from pretrain.tools.migrate.setting import MigrateOptions
from pretrain.tools.migrate.sources.script import read_arguments
from pretrain.tools.migrate.to_megatron.arguments import arguments_of
from pretrain.tools.migrate.to_megatron.flags import TARGET
from tools.migrate.to_megatron.expressible import recipes

if TYPE_CHECKING:
    from pretrain.recipe.recipe import Recipe


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(recipe=recipes())
def test_arguments_give_the_recipe_back(recipe: Recipe):
    """No value is lost or mistaken on the way."""
    sources = [read_arguments(arguments_of(recipe).text)]
    migration = migrate(sources, MigrateOptions(TARGET, recipe.model_parallel_size))
    assert migration.recipe == recipe
    assert migration.is_complete
