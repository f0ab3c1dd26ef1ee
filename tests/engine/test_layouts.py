"""One recipe gives one loss curve, however it is laid over the ranks; a checkpoint goes on at any other layout."""

from __future__ import annotations

from functools import cache

import pytest

from engine import ranks, tiny
from engine.layouts import BF16, FOUR_RANKS, ONE_RANK, SAVED_AT, TWO_RANKS, Case

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("layouts")


@pytest.fixture(scope="module")
def two_ranks(folder):
    return ranks.run("TWO_RANKS", 2, folder)


@pytest.fixture(scope="module")
def four_ranks(folder, two_ranks):
    return ranks.run("FOUR_RANKS", 4, folder)


@cache
def one_process(model, last):
    """Train without interruption in this process."""
    return tiny.run(Case(model, (), last=last), folder=None)


def check(result, case):
    """Compare with one process, which never stopped."""
    expected = one_process(case.model, case.last)
    first = SAVED_AT if case.loads else 0
    # Sums over ranks are rounded otherwise; in bf16 every activation is.
    rel = 5e-3 if case.model == BF16 else 1e-5
    assert_close(result["curve"], expected["curve"][first:], rel)
    assert result["held out"] == pytest.approx(expected["held out"], rel=rel)
    assert result["parameters"] == pytest.approx(expected["parameters"], rel=rel)
    assert result["logits"] == pytest.approx(expected["logits"], abs=100 * rel)


def assert_close(curve, expected, rel):
    losses, norms = zip(*curve, strict=True)
    expected_losses, expected_norms = zip(*expected, strict=True)
    assert losses == pytest.approx(expected_losses, rel=rel)
    assert norms == pytest.approx(expected_norms, rel=rel)


@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_train_as_one(name, two_ranks):
    check(two_ranks[name], TWO_RANKS[name])


@pytest.mark.parametrize("name", FOUR_RANKS)
def test_four_ranks_train_as_one(name, four_ranks):
    check(four_ranks[name], FOUR_RANKS[name])


@pytest.mark.parametrize("name", ONE_RANK)
def test_a_checkpoint_of_two_ranks_goes_on_in_one(name, folder, two_ranks):
    check(tiny.run(ONE_RANK[name], folder), ONE_RANK[name])
