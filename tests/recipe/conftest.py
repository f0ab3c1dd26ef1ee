"""The smallest recipe that is complete, and a way to see what is wrong with one."""

from __future__ import annotations

import copy

import pytest

from pretrain.errors import RecipeError
from pretrain.recipe import make_recipe
from recipe.smallest import SMALLEST


@pytest.fixture
def smallest():
    """Plain data that may be changed."""
    return copy.deepcopy(SMALLEST)


@pytest.fixture
def make():
    """Make a recipe of the smallest one and overrides."""
    return lambda *overrides: make_recipe(SMALLEST, overrides)


@pytest.fixture
def refusal():
    """Return the message with which a recipe of the smallest one and overrides is refused."""

    def refuse(*overrides, data=SMALLEST):
        with pytest.raises(RecipeError) as caught:
            make_recipe(data, overrides)
        return str(caught.value)

    return refuse
