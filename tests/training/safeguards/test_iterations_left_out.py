"""Iterations that are passed over: those of the recipe, and those of rollbacks."""

from __future__ import annotations

import pytest

from pretrain.training.progress import Progress
from pretrain.training.training_data import SkippedIterations


@pytest.mark.parametrize("given", ["[3, 5-7]", "3 5-7", "3,5-7", "3, 5-7", '["3", 5-7]'])
def test_they_are_numbered_as_in_the_log(make, given):
    progress = Progress()
    left_out = SkippedIterations.of(make(f"train.iterations_to_skip={given}"), progress)
    passed = []
    for progress.iteration in range(10):
        passed += [progress.iteration + 1] if left_out.has_next() else []
    assert passed == [3, 5, 6, 7]


def test_stretches_of_rollbacks_are_left_out_too(make):
    progress = Progress(iteration=9, left_out=[[4, 6], [10, 12]])
    assert SkippedIterations.of(make(), progress).has_next()


@pytest.mark.parametrize("given", ["0", "[7-3]", "[0-3]", "[true]", "[seven]", "[1.5]"])
def test_other_values_are_refused(make, given):
    with pytest.raises(Exception, match="is neither an iteration, from 1, nor a range of them, such as 100-300"):
        make(f"train.iterations_to_skip={given}")
