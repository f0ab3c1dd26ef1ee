"""A model with experts has one loss curve in every layout, for 12 steps; a checkpoint resumes in any other layout."""

from __future__ import annotations

import pytest

from engine import ranks, tiny
from engine.comparison import check
from engine.expert_layouts import (
    EXPERTS_FOUR_RANKS,
    EXPERTS_FOUR_RANKS_FULL,
    EXPERTS_ONE_RANK,
    EXPERTS_TWO_RANKS,
    EXPERTS_TWO_RANKS_FULL,
)

pytestmark = pytest.mark.ranks


TABLE = "EXPERTS_TWO_RANKS"


@pytest.fixture(scope="module")
def trained(folder, two_ranks):
    """Return what the ranks of a table of cases had; the ranks of each train once."""
    known = {TABLE: two_ranks}

    def train(table):
        if table not in known:
            known[table] = ranks.run(table, 4 if "FOUR" in table else 2, folder)
        return known[table]

    return train


@pytest.mark.parametrize("name", EXPERTS_TWO_RANKS)
def test_two_ranks_train_as_one(name, trained):
    check(trained("EXPERTS_TWO_RANKS")[name], EXPERTS_TWO_RANKS[name])


@pytest.mark.full
@pytest.mark.parametrize("name", EXPERTS_TWO_RANKS_FULL)
def test_two_ranks_train_further_combinations_as_one(name, trained):
    trained("EXPERTS_TWO_RANKS")  # whose checkpoints some load
    check(trained("EXPERTS_TWO_RANKS_FULL")[name], EXPERTS_TWO_RANKS_FULL[name])


@pytest.mark.full
@pytest.mark.parametrize("name", EXPERTS_FOUR_RANKS)
def test_four_ranks_train_as_one(name, trained):
    check(trained("EXPERTS_FOUR_RANKS")[name], EXPERTS_FOUR_RANKS[name])


@pytest.mark.full
@pytest.mark.parametrize("name", EXPERTS_FOUR_RANKS_FULL)
def test_four_ranks_train_further_combinations_as_one(name, trained):
    check(trained("EXPERTS_FOUR_RANKS_FULL")[name], EXPERTS_FOUR_RANKS_FULL[name])


@pytest.mark.full
@pytest.mark.parametrize("name", EXPERTS_ONE_RANK)
def test_a_checkpoint_of_several_ranks_resumes_on_one(name, folder, trained):
    trained("EXPERTS_TWO_RANKS"), trained("EXPERTS_FOUR_RANKS")
    check(tiny.run(EXPERTS_ONE_RANK[name], folder), EXPERTS_ONE_RANK[name])
