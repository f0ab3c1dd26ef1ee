"""Fixtures of small recipes, which the tests of recipes have too."""

from recipe.conftest import make, refusal, smallest

__all__ = ["make", "refusal", "smallest"]
