"""The slowest rank, and when it is slow for long enough to be warned of."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.training.reporting.stragglers import FEWEST, PATIENCE, OwnTimes, Slowest, Stragglers, slowest

TIMES = st.floats(min_value=1e-4, max_value=1.0)


def times(attention, data=None):
    waits = data or [0.0] * len(attention)
    return [OwnTimes(attention=own, data=wait) for own, wait in zip(attention, waits, strict=True)]


@given(st.lists(TIMES, min_size=2, max_size=20))
def test_it_is_held_against_the_median_of_the_others(attention):
    found = slowest(times(attention), seconds_per_iteration=1.0)
    others = sorted(attention)[:-1]
    middle = sorted(others)[len(others) // 2] if len(others) % 2 else sum(others[len(others) // 2 - 1 :][:2]) / 2
    assert found.slowdown == pytest.approx(max(attention) / middle - 1)
    assert attention[found.rank] == max(attention)
    assert found.cause == "compute"


def test_one_of_two_ranks_is_held_against_the_other():
    assert slowest(times([1.0, 1.5]), 10.0) == Slowest(rank=1, slowdown=0.5, cause="compute")


def test_waiting_for_data_is_held_against_the_iteration():
    found = slowest(times([1.0, 1.05, 1.0], [0.0, 0.0, 0.4]), seconds_per_iteration=2.0)
    assert found == Slowest(rank=2, slowdown=0.2, cause="data")


def test_without_measured_attention_the_data_alone_counts():
    assert slowest(times([0.0, 0.0], [0.0, 0.1]), 1.0) == Slowest(rank=1, slowdown=0.1, cause="data")


def test_ranks_whose_stages_read_no_data_are_not_held_against_those_that_do():
    # the first and the last of three pipeline stages read data, of two data-parallel ranks each
    waits = [0.20, 0.21, -1.0, -1.0, 0.20, 0.20]
    found = slowest(times([0.0] * 6, waits), seconds_per_iteration=1.0)
    assert (found.rank, found.cause) == (1, "data")
    assert found.slowdown == pytest.approx(0.01)


@pytest.mark.parametrize("waits", [[0.3, -1.0], [-1.0, -1.0, -1.0]])
def test_fewer_than_two_ranks_that_read_have_no_slowest_one(waits):
    assert slowest(times([0.0] * len(waits), waits), 1.0) is None
    assert slowest(times([1.0, *[2.0] * (len(waits) - 1)], waits), 1.0).cause == "compute"


def test_one_rank_has_no_others():
    assert slowest(times([1.0]), 1.0) is None


def stragglers():
    return Stragglers(clock=None, device=torch.device("cpu"), reads_data=True)


def told(watch, *slowdowns, rank=3, cause="compute", iterations=100):
    found = [Slowest(rank=rank, slowdown=slowdown, cause=cause) for slowdown in slowdowns]
    return [watch.warning(each, iterations) for each in found]


def test_a_rank_that_is_slow_for_five_intervals_is_warned_of_once():
    lines = told(stragglers(), *[0.25] * 12)
    assert [bool(line) for line in lines] == [number == PATIENCE for number in range(1, 13)]
    assert lines[PATIENCE - 1] == (
        "warning: rank 3 computes 25 % longer than the median of the others, over 10 % for 5 logged intervals; all "
        "ranks wait for it. Look at its device (clock, temperature, other processes on it) or leave its node out."
    )


def test_an_interval_within_the_tolerance_begins_the_count_again():
    watch = stragglers()
    assert told(watch, 0.2, 0.2, 0.2, 0.2, 0.1, 0.2, 0.2, 0.2, 0.2) == [None] * 9
    assert told(watch, 0.2)[0]


def test_short_intervals_are_noise_until_they_have_enough_iterations():
    lines = told(stragglers(), *[0.25] * 30, iterations=1)
    assert [number for number, line in enumerate(lines, start=1) if line] == [FEWEST]
    assert f"for {FEWEST} logged intervals" in lines[FEWEST - 1]


def test_ranks_that_take_turns_are_noise():
    watch = stragglers()
    assert [told(watch, 0.5, rank=number % 2) for number in range(12)] == [[None]] * 12


def test_a_rank_that_waits_for_its_data_is_told_where_to_look():
    assert "rank 3 waits for its data 30 % longer" in told(stragglers(), *[0.3] * 5, cause="data")[-1]
