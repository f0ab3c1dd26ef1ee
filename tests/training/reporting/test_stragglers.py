"""The slowest rank, and when it is slow for long enough to be warned of."""

from __future__ import annotations

import statistics
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pretrain.model.layer import CoreAttention
from pretrain.training.reporting.stragglers import (
    CALLS,
    FEWEST,
    PATIENCE,
    TOLERATED,
    LocalClock,
    OwnTimes,
    SlowRank,
    Stragglers,
    _timing_event,
    slow_ranks,
)

TIMES = st.floats(min_value=1e-4, max_value=1.0)


def times(attention, data=None):
    waits = data or [0.0] * len(attention)
    return [OwnTimes(attention=own, data=wait) for own, wait in zip(attention, waits, strict=True)]


@given(st.lists(TIMES, min_size=2, max_size=20))
def test_it_is_held_against_the_median_of_the_others(attention):
    found, *_ = slow_ranks(times(attention), seconds_per_iteration=1.0)
    others = sorted(attention)[:-1]
    middle = sorted(others)[len(others) // 2] if len(others) % 2 else sum(others[len(others) // 2 - 1 :][:2]) / 2
    assert found.slowdown == pytest.approx(max(attention) / middle - 1)
    assert attention[found.rank] == max(attention)
    assert found.cause == "compute"


def test_one_of_two_ranks_is_held_against_the_other():
    assert slow_ranks(times([1.0, 1.5]), 10.0)[0] == SlowRank(rank=1, slowdown=0.5, cause="compute")


def test_waiting_for_data_is_held_against_the_iteration():
    found, *_ = slow_ranks(times([1.0, 1.05, 1.0], [0.0, 0.0, 0.4]), seconds_per_iteration=2.0)
    assert found == SlowRank(rank=2, slowdown=0.2, cause="data")


def test_without_measured_attention_the_data_alone_counts():
    assert slow_ranks(times([0.0, 0.0], [0.0, 0.1]), 1.0) == [SlowRank(rank=1, slowdown=0.1, cause="data")]


def test_ranks_whose_stages_read_no_data_are_not_held_against_those_that_do():
    # the first and the last of three pipeline stages read data, of two data-parallel ranks each
    waits = [0.20, 0.21, -1.0, -1.0, 0.20, 0.20]
    found, *_ = slow_ranks(times([0.0] * 6, waits), seconds_per_iteration=1.0)
    assert (found.rank, found.cause) == (1, "data")
    assert found.slowdown == pytest.approx(0.01)


@pytest.mark.parametrize("waits", [[0.3, -1.0], [-1.0, -1.0, -1.0]])
def test_fewer_than_two_ranks_that_read_have_no_slowest_one(waits):
    assert slow_ranks(times([0.0] * len(waits), waits), 1.0) == []
    assert slow_ranks(times([1.0, *[2.0] * (len(waits) - 1)], waits), 1.0)[0].cause == "compute"


def test_one_rank_has_no_others():
    assert slow_ranks(times([1.0]), 1.0) == []


@given(st.lists(TIMES, min_size=2, max_size=20))
def test_all_that_are_over_the_tolerance_are_found_and_the_slowest_in_any_case(attention):
    middle = statistics.median(sorted(attention)[:-1])
    found = [each for each in slow_ranks(times(attention), 1.0) if each.cause == "compute"]
    over = {rank for rank, own in enumerate(attention) if own > middle + TOLERATED * middle}
    assert {each.rank for each in found} == over | {attention.index(max(attention))}
    assert [each.slowdown for each in found] == sorted((each.slowdown for each in found), reverse=True)


def stragglers():
    return Stragglers(clock=None, reads_data=True)


def told(watch, *slowdowns, rank=3, cause="compute", iterations=100):
    """Return the text that follows each interval in which one rank is behind by so much; empty without a warning."""
    return [
        "".join(text for _, text in watch.warnings([SlowRank(rank=rank, slowdown=each, cause=cause)], iterations))
        for each in slowdowns
    ]


def test_a_rank_that_is_slow_for_five_intervals_is_warned_of_once():
    lines = told(stragglers(), *[0.25] * 12)
    assert [bool(line) for line in lines] == [number == PATIENCE for number in range(1, 13)]
    assert lines[PATIENCE - 1] == (
        "warning: rank 3 computes 25 % longer than the median of the others, and over 10 % for 5 logged intervals; all "
        "ranks wait for it. Look at its device (clock, temperature, other processes on it) or leave its node out."
    )


def test_an_interval_within_the_tolerance_begins_the_count_again():
    watch = stragglers()
    assert told(watch, 0.2, 0.2, 0.2, 0.2, 0.1, 0.2, 0.2, 0.2, 0.2) == [""] * 9
    assert told(watch, 0.2)[0]


def test_short_intervals_are_noise_until_they_have_enough_iterations():
    lines = told(stragglers(), *[0.25] * 30, iterations=1)
    assert [number for number, line in enumerate(lines, start=1) if line] == [FEWEST]
    assert f"for {FEWEST} logged intervals" in lines[FEWEST - 1]


def test_ranks_that_take_turns_within_the_tolerance_are_noise():
    watch = stragglers()
    assert [told(watch, 0.5, rank=number % 2) for number in range(12)] == [[""]] * 12


def test_ranks_of_a_slow_node_are_told_together_whichever_of_them_is_the_slowest():
    watch, seen = stragglers(), []
    for number in range(12):
        attention = [1.0] * 56 + [1.4 + 0.01 * ((number + rank) % 8) for rank in range(8)]
        seen.append(watch.warnings(slow_ranks(times(attention), 1.0), iterations=10))
    ((slowest, text),) = seen[PATIENCE - 1]
    assert [len(lines) for lines in seen] == [int(number == PATIENCE) for number in range(1, 13)]
    assert (slowest.rank, slowest.slowdown) == (59, pytest.approx(0.47))
    assert text == (
        "warning: ranks 56-63 compute 40 to 47 % longer than the median of the others, and over 10 % for 5 logged "
        "intervals; all ranks wait for them. Look at their devices (clock, temperature, other processes) or leave "
        "their nodes out."
    )


def test_a_rank_that_becomes_slow_later_is_told_of_later_and_alone():
    watch = stragglers()
    one, other = (SlowRank(rank=rank, slowdown=0.2, cause="compute") for rank in (1, 2))
    lines = [watch.warnings([one, other] if number > 2 else [one], 100) for number in range(1, 9)]
    assert [[slowest.rank for slowest, _ in each] for each in lines] == [[], [], [], [], [1], [], [2], []]


def test_ranks_that_are_slow_by_different_causes_have_lines_of_their_own():
    watch = stragglers()
    both = [SlowRank(rank=1, slowdown=0.3, cause="data"), SlowRank(rank=1, slowdown=0.2, cause="compute")]
    *_, lines = (watch.warnings(both, 100) for _ in range(PATIENCE))
    assert [slowest.cause for slowest, _ in lines] == ["data", "compute"]


def test_a_rank_that_waits_for_its_data_is_told_where_to_look():
    assert "rank 3 waits for its data 30 % longer" in told(stragglers(), *[0.3] * 5, cause="data")[-1]


class Attention(CoreAttention):
    """Attention without a kernel."""

    def __init__(self):
        nn.Module.__init__(self)

    def forward(self, value):
        return value


def clocked(layers, seconds):
    """Return a model of attention layers, and a clock on them that reads `seconds` one after the other."""
    model = nn.ModuleList(Attention() for _ in range(layers))
    clock = LocalClock(torch.device("cpu"), clock=lambda: next(seconds))
    clock.attach([model])
    return model, clock


def forward(model):
    for layer in model:
        layer(torch.zeros(()))


def test_the_mean_of_the_first_calls_is_taken_and_begins_again():
    model, clock = clocked(2, iter([0.0, 1.0, 10.0, 13.0]))
    clock.begin_step()
    forward(model)
    clock.end_step(1, None)
    assert clock.take() == pytest.approx(2.0)
    assert clock.take() == 0.0


def test_later_micro_batches_and_layers_are_not_measured():
    model, clock = clocked(CALLS + 3, count())
    clock.begin_step()
    forward(model)
    forward(model)
    assert clock._calls == CALLS


def test_evaluations_are_not_measured():
    model, clock = clocked(2, count())
    forward(model)
    clock.begin_step()
    clock.end_step(1, None)
    forward(model)
    assert clock.take() == 0.0


def test_a_device_whose_module_has_no_events_is_timed_by_the_host(monkeypatch):
    monkeypatch.setattr("torch.get_device_module", lambda device: object())
    assert _timing_event(torch.device("meta")) is None
