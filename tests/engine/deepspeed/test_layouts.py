"""The DeepSpeed engine has the megatron engine's curve at every stage; checkpoints resume at any stage of either."""

from __future__ import annotations

import pytest

from engine import ranks, tiny
from engine.comparison import check
from engine.layouts import (
    DEEPSPEED_FOUR_RANKS,
    DEEPSPEED_FOUR_RANKS_FULL,
    DEEPSPEED_FOUR_TO_ONE,
    DEEPSPEED_ONE_RANK,
    DEEPSPEED_TWO_RANKS,
    DEEPSPEED_TWO_RANKS_FULL,
)

pytestmark = pytest.mark.ranks


TABLE = "DEEPSPEED_TWO_RANKS"


@pytest.fixture(scope="module")
def four_ranks(folder, two_ranks):
    return ranks.run("DEEPSPEED_FOUR_RANKS", 4, folder)


@pytest.mark.parametrize("name", DEEPSPEED_TWO_RANKS)
def test_two_ranks_train_as_the_megatron_engine_on_one(name, two_ranks):
    check(two_ranks[name], DEEPSPEED_TWO_RANKS[name])


@pytest.fixture(scope="module")
def two_ranks_further(folder, two_ranks):
    return ranks.run("DEEPSPEED_TWO_RANKS_FULL", 2, folder)


@pytest.mark.full
@pytest.mark.parametrize("name", DEEPSPEED_TWO_RANKS_FULL)
def test_two_ranks_train_further_combinations_as_the_megatron_engine_on_one(name, two_ranks_further):
    check(two_ranks_further[name], DEEPSPEED_TWO_RANKS_FULL[name])


@pytest.mark.full
@pytest.mark.parametrize("name", DEEPSPEED_FOUR_RANKS)
def test_four_ranks_train_as_the_megatron_engine_on_one(name, four_ranks):
    check(four_ranks[name], DEEPSPEED_FOUR_RANKS[name])


@pytest.fixture(scope="module")
def four_ranks_further(folder, two_ranks):
    return ranks.run("DEEPSPEED_FOUR_RANKS_FULL", 4, folder)


@pytest.mark.full
@pytest.mark.parametrize("name", DEEPSPEED_FOUR_RANKS_FULL)
def test_four_ranks_train_further_combinations_as_the_megatron_engine_on_one(name, four_ranks_further):
    check(four_ranks_further[name], DEEPSPEED_FOUR_RANKS_FULL[name])


@pytest.mark.parametrize("name", DEEPSPEED_ONE_RANK)
def test_a_checkpoint_of_two_ranks_resumes_on_one(name, folder, two_ranks):
    check(tiny.run(DEEPSPEED_ONE_RANK[name], folder), DEEPSPEED_ONE_RANK[name])


@pytest.mark.full
@pytest.mark.parametrize("name", DEEPSPEED_FOUR_TO_ONE)
def test_a_checkpoint_of_four_ranks_resumes_on_one(name, folder, four_ranks):
    check(tiny.run(DEEPSPEED_FOUR_TO_ONE[name], folder), DEEPSPEED_FOUR_TO_ONE[name])
