"""One recipe gives one loss curve, however many ranks share a sequence, and wherever its documents end."""

from __future__ import annotations

import pytest
import torch
from megatron.core import parallel_state

from engine import ranks, tiny
from engine.comparison import assert_close, check
from engine.context_layouts import (
    CONTEXT_FOUR_RANKS_FULL,
    CONTEXT_ONE_RANK,
    CONTEXT_TWO_RANKS,
    CONTEXT_TWO_RANKS_FULL,
)
from engine.layouts import SAVED_AT
from pretrain.engine import groups

pytestmark = pytest.mark.ranks


TABLE = "CONTEXT_TWO_RANKS"


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


def test_ranks_that_share_a_sequence_draw_their_own_numbers(monkeypatch):
    with tiny.engine_of(tiny.tiny("model.num_layers=1")):
        groups.seed(1)
        of_first = torch.rand(4)
        # The second of two such ranks is one of the first ones among those that read other samples.
        monkeypatch.setattr(
            parallel_state, "get_data_parallel_rank", lambda *, with_context_parallel=False: int(with_context_parallel)
        )
        groups.seed(1)
        assert not torch.equal(torch.rand(4), of_first)


@pytest.fixture(scope="module")
def dropped(folder):
    return {name: each["curve"] for name, each in ranks.run("CONTEXT_DROPOUT_FULL", 2, folder).items()}


@pytest.mark.full
def test_dropout_resumes_bit_for_bit_on_ranks_that_share_a_sequence(dropped):
    assert dropped["resumed"] == dropped["dropout"][SAVED_AT:]
    assert dropped["dropout"][0] != dropped["no dropout"][0]


@pytest.mark.full
@pytest.mark.parametrize("name", ["recompute", "selective recompute"])
def test_pieces_recompute_what_they_dropped(name, dropped):
    assert_close(dropped[name], dropped["dropout"], rel=1e-6)


@pytest.fixture(scope="module")
def four_ranks(folder):
    return ranks.run("CONTEXT_FOUR_RANKS_FULL", 4, folder)


@pytest.mark.full
@pytest.mark.parametrize("name", CONTEXT_FOUR_RANKS_FULL)
def test_four_ranks_train_as_one(name, four_ranks):
    check(four_ranks[name], CONTEXT_FOUR_RANKS_FULL[name])
