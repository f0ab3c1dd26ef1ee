"""One of two sides: what makes it comparable, and its ranks."""

from pathlib import Path

import pytest

from pretrain.align.side import Side
from pretrain.recipe import load_recipe

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yml"
TWO = ("parallel.tensor_model_parallel_size=2",)


@pytest.mark.parametrize(
    "override",
    [
        "schedule.lr_warmup_fraction=0.1",
        "model.hidden_dropout=0.1",
        "kernels.compile=layer",
    ],
)
def test_an_override_of_what_makes_sides_comparable_is_replaced(override):
    recipe = load_recipe(QUICKSTART, Side(recipe=QUICKSTART, overrides=(override,)).comparable())

    assert not recipe.schedule.lr_warmup_fraction
    assert recipe.model.hidden_dropout == 0.0


@pytest.mark.parametrize(
    ("overrides", "nproc", "ranks"),
    [((), None, 4), (("precision.dtype=bf16",), None, 4), ((), 2, 2), (TWO, None, None)],
    ids=["the same", "another dtype", "its own", "other parallel sizes"],
)
def test_the_second_side_has_the_ranks_of_the_first(overrides, nproc, ranks):
    first = Side(recipe=QUICKSTART, nproc=4)

    assert Side(recipe=QUICKSTART, overrides=overrides, nproc=nproc).with_ranks_of(first).nproc == ranks
