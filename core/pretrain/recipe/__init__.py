"""A recipe: one YAML file that describes one training run, read into frozen, checked objects."""

from pretrain.recipe.layout import Layout, lay_out
from pretrain.recipe.load import load_recipe, make_recipe, to_yaml
from pretrain.recipe.recipe import Recipe

__all__ = ["Layout", "Recipe", "lay_out", "load_recipe", "make_recipe", "to_yaml"]
