"""A recipe: one YAML file that describes one training run, read into frozen, checked objects."""

from pretrain.recipe.layout import Layout
from pretrain.recipe.load import load_recipe, make_recipe
from pretrain.recipe.recipe import Recipe

__all__ = ["Layout", "Recipe", "load_recipe", "make_recipe"]
