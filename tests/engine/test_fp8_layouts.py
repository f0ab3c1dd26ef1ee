"""A model in fp8 trains in every layout as one process does, as far as rounding to fp8 lets it."""

from __future__ import annotations

import pytest

from engine import ranks, tiny
from engine.comparison import check, check_fp8
from engine.fp8_layouts import FP8, FP8_TWO_RANKS, KINDS

pytestmark = [pytest.mark.ranks, pytest.mark.full]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    return ranks.run("FP8_TWO_RANKS", 2, tmp_path_factory.mktemp("fp8"))


@pytest.mark.parametrize("name", FP8_TWO_RANKS)
def test_two_ranks_train_as_one(name, two_ranks):
    check(two_ranks[name], FP8_TWO_RANKS[name])


@pytest.mark.parametrize("kind", KINDS)
def test_a_layout_that_left_out_fp8_would_be_seen(kind):
    """Of kinds among themselves nothing would be: they differ in entries far below the largest of their group."""
    curve = tiny.curve(*FP8[kind], iterations=2)
    with pytest.raises(AssertionError):
        check_fp8(curve, tiny.curve(*FP8[kind][:-1], iterations=2), 1e-6)
