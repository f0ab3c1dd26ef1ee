"""The simulator of many ranks: what 16 of them do, and the growth of a cost against numbers worked out by hand."""

from __future__ import annotations

import json

import pytest

from structure.sources import ROOT

pytestmark = pytest.mark.xdist_group("scale")  # one worker: one simulation


@pytest.fixture(scope="module")
def found(run):
    """What each act of 16 ranks, on 2 nodes, cost."""
    ended = run("scale", "--quick")
    assert ended.returncode == 0, ended.stderr
    return {name: act["of"]["16"] for name, act in json.loads(ended.stdout)["now"].items()}


def test_launchers_meet_and_meet_again_after_a_failure(found):
    for act in ("launchers: rendezvous", "launchers: restart"):
        assert found[act]["returned"] == 16  # ranks of the world
        assert found[act]["store_requests"] > 10
        assert found[act]["store_bytes"] > found[act]["store_requests"]


def test_launchers_leave_when_one_was_asked_to(found):
    assert found["launchers: stop"]["returned"] == 75


def test_each_rank_tells_rank_0_its_recipe(found):
    assert found["ranks: start"]["returned"] == "1"  # all are the same
    assert found["ranks: start"]["store_bytes"] > 2 * 16 * 6000  # in and out of the store


def test_the_ranks_have_sockets_of_their_own_while_they_are_in_groups(found):
    assert found["ranks: start"]["sockets_each"] == 1
    assert found["ranks: exchange_groups"]["sockets_each"] == 17  # the store, a listening one, and 15 ranks
    assert found["ranks: leave"]["sockets_each"] == 1


def test_all_ranks_know_of_a_stop_in_the_turn_after(found):
    assert found["ranks: stop"]["returned"] == 2


def test_rank_0_has_the_share_of_each_rank_of_a_checkpoint(found):
    assert found["ranks: checkpoint"]["returned"] == 16


def test_a_hang_report_is_made_of_all_states(found):
    assert found["ranks: hang_report"]["returned"]["report_bytes"] > 16 * 500


@pytest.fixture
def growth(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.scale.growth import growth

    return growth


def test_a_cost_that_grows_with_the_square_is_found_out(growth):
    grown = growth({64: 1.0, 256: 16.0, 1024: 256.0})
    assert grown["exponent"] == 2
    assert grown["of_n_log_n"] == 9.6  # 256 / (16 * 10 / 6)
    assert grown["worked_out"] == {16384: 65500, 100000: 2.44e6}  # 256 * 16^2, 256 * (100000 / 1024)^2


def test_a_cost_that_grows_with_the_ranks_is_below_n_log_n(growth):
    assert growth({64: 6.4, 4096: 409.6})["of_n_log_n"] == 0.5  # 64 / (64 * 12 / 6)


def test_one_size_tells_no_growth(growth):
    assert growth({64: 1.0}) == {}
