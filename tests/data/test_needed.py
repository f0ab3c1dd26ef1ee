"""Number of samples that each split must have."""

import pytest

from pretrain.data.needed import SampleCounts, samples_needed
from pretrain.recipe import make_recipe
from recipe.smallest import SMALLEST


@pytest.mark.parametrize(
    ("overrides", "iterations", "expected"),
    [
        (["evaluation.interval=10", "evaluation.iters=3"], 100, SampleCounts(train=800, valid=3 * 8, test=3 * 8)),
        (["evaluation.interval=30", "evaluation.iters=3"], 100, SampleCounts(train=800, valid=3 * 8, test=3 * 8)),
        (["evaluation.interval=10", "data.split=90,10,0"], 100, SampleCounts(train=800, valid=100 * 8, test=0)),
        (["evaluation.interval=0"], 100, SampleCounts(train=800, valid=0, test=0)),
        (["train.train_samples=1000", "evaluation.interval=0"], 125, SampleCounts(train=1000)),
    ],
)
def test_counts(overrides, iterations, expected):
    assert samples_needed(make_recipe(SMALLEST, overrides), iterations) == expected
