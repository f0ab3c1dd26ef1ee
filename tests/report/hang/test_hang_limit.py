"""Seconds after which a rank hangs."""

from types import SimpleNamespace

import pytest

from pretrain.report.hang import position as activities
from pretrain.report.hang.hang_watch import HangLimit
from pretrain.report.hang.position import Position


def position(activity, *, steps=(2.0, 2.0, 2.0), iteration=9):
    made, now = Position(), [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activities, "time", SimpleNamespace(monotonic=lambda: now[0]))
        for step in steps:
            with made.step(iteration):
                now[0] += step
    made.activity, made.iteration = activity, iteration
    return made


def hangs(given, where, seconds, *, waited=0.0, timeout=600.0):
    return HangLimit(given, timeout).exceeded(where, seconds, lambda: waited)


@pytest.mark.parametrize(("step", "limit"), [(0.1, 60), (30.0, 300)])
@pytest.mark.parametrize("activity", ["data", activities.FORWARD_BACKWARD, "optimizer", activities.BETWEEN])
def test_a_step_takes_ten_median_ones_and_a_minute_at_least(step, limit, activity):
    where = position(activity, steps=(step, step, 100 * step))
    assert not hangs(None, where, limit - 1)
    assert hangs(None, where, limit + 1)


@pytest.mark.parametrize("activity", [activities.START, activities.LOAD, "save", "evaluation", activities.LOG])
def test_work_of_unknown_length_hangs_when_another_rank_soon_gives_up(activity):
    where = position(activity)
    assert not hangs(None, where, 5000)
    assert not hangs(None, where, 579, waited=579)
    assert hangs(None, where, 581, waited=581)


def test_a_rank_that_has_just_begun_to_wait_after_long_work_does_not_hang():
    """It has written a large checkpoint, and is in the barrier that ends it."""
    assert not hangs(None, position("save"), 5000, waited=1)
    assert not hangs(None, position("save"), 5000, waited=579)
    assert hangs(None, position("save"), 5000, waited=581)


def test_before_three_steps_there_is_no_median():
    assert not hangs(None, position("data", steps=(0.1, 0.1)), 5000)


def test_a_given_number_holds_for_everything_after_the_start():
    assert hangs(5, position("save"), 6)
    assert not hangs(5, position("save"), 4)
    assert not hangs(5, position(activities.START, iteration=0), 6)


@pytest.mark.parametrize("steps", [(), (0.1, 0.1)])
def test_a_given_number_leaves_the_first_batches_to_workers_that_start(steps):
    assert not hangs(5, position("data", steps=steps, iteration=1), 25)
    assert hangs(5, position(activities.FORWARD_BACKWARD, steps=steps, iteration=1), 25)
    assert hangs(5, position("data"), 25)


def test_a_given_number_beyond_the_timeout_is_cut_for_those_who_wait():
    assert hangs(5000, position("data"), 590, waited=590)
    assert not hangs(5000, position("data"), 590)


@pytest.mark.parametrize("given", [None, 5])
def test_the_end_takes_as_long_as_what_is_left_to_write(given):
    assert not hangs(given, position(activities.END), 5000)
    assert hangs(given, position(activities.END), 581, waited=581)


@pytest.mark.parametrize("given", [None, 5])
def test_lm_eval_takes_as_long_as_it_needs(given):
    assert not hangs(given, position(activities.TASKS), 5000)


def test_zero_switches_it_off():
    assert HangLimit(0, 600).is_off
    assert not hangs(0, position("data"), 1e9, waited=1e9)


def test_a_rank_that_moves_is_not_asked_whether_it_waits():
    def unexpected():
        raise AssertionError

    assert not HangLimit(None, 600).exceeded(position("data"), 1, unexpected)
