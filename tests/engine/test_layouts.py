"""One recipe gives one loss curve, in every layout; a checkpoint resumes in any other layout."""

from __future__ import annotations

import pytest

from engine import ranks, tiny
from engine.comparison import check
from engine.layouts import FOUR_RANKS, FOUR_RANKS_FULL, ONE_RANK, TWO_RANKS, TWO_RANKS_FULL

pytestmark = pytest.mark.ranks


TABLE = "TWO_RANKS"


@pytest.fixture(scope="module")
def four_ranks(folder, two_ranks):
    return ranks.run("FOUR_RANKS", 4, folder)


@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_train_as_one(name, two_ranks):
    check(two_ranks[name], TWO_RANKS[name])


@pytest.mark.full
@pytest.mark.parametrize("name", FOUR_RANKS)
def test_four_ranks_train_as_one(name, four_ranks):
    check(four_ranks[name], FOUR_RANKS[name])


@pytest.mark.parametrize("name", ONE_RANK)
def test_a_checkpoint_of_two_ranks_resumes_on_one(name, folder, two_ranks):
    check(tiny.run(ONE_RANK[name], folder), ONE_RANK[name])


@pytest.fixture(scope="module")
def two_ranks_further(folder, two_ranks):
    return ranks.run("TWO_RANKS_FULL", 2, folder)


@pytest.mark.full
@pytest.mark.parametrize("name", TWO_RANKS_FULL)
def test_two_ranks_train_further_combinations_as_one(name, two_ranks_further):
    check(two_ranks_further[name], TWO_RANKS_FULL[name])


@pytest.fixture(scope="module")
def four_ranks_further(folder, two_ranks):
    return ranks.run("FOUR_RANKS_FULL", 4, folder)


@pytest.mark.full
@pytest.mark.parametrize("name", FOUR_RANKS_FULL)
def test_four_ranks_train_further_combinations_as_one(name, four_ranks_further):
    check(four_ranks_further[name], FOUR_RANKS_FULL[name])
