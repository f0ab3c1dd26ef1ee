"""One recipe gives one loss curve, however many ranks share a sequence, and wherever its documents end."""

from __future__ import annotations

import pytest

from engine import ranks, tiny
from engine.comparison import check
from engine.context_layouts import (
    CONTEXT_FOUR_RANKS_FULL,
    CONTEXT_ONE_RANK,
    CONTEXT_TWO_RANKS,
    CONTEXT_TWO_RANKS_FULL,
)

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("layouts")


@pytest.fixture(scope="module")
def two_ranks(folder):
    return ranks.run("CONTEXT_TWO_RANKS", 2, folder)


@pytest.mark.parametrize("name", CONTEXT_TWO_RANKS)
def test_two_ranks_train_as_one(name, two_ranks):
    check(two_ranks[name], CONTEXT_TWO_RANKS[name])


@pytest.mark.parametrize("name", CONTEXT_ONE_RANK)
def test_a_checkpoint_of_two_ranks_resumes_on_one(name, folder, two_ranks):
    check(tiny.run(CONTEXT_ONE_RANK[name], folder), CONTEXT_ONE_RANK[name])


@pytest.fixture(scope="module")
def two_ranks_further(folder, two_ranks):
    return ranks.run("CONTEXT_TWO_RANKS_FULL", 2, folder)


@pytest.mark.full
@pytest.mark.parametrize("name", CONTEXT_TWO_RANKS_FULL)
def test_two_ranks_train_further_combinations_as_one(name, two_ranks_further):
    check(two_ranks_further[name], CONTEXT_TWO_RANKS_FULL[name])


@pytest.fixture(scope="module")
def four_ranks(folder):
    return ranks.run("CONTEXT_FOUR_RANKS_FULL", 4, folder)


@pytest.mark.full
@pytest.mark.parametrize("name", CONTEXT_FOUR_RANKS_FULL)
def test_four_ranks_train_as_one(name, four_ranks):
    check(four_ranks[name], CONTEXT_FOUR_RANKS_FULL[name])
