"""A loss is a spike if it is over so many times the median of the last hundred."""

from __future__ import annotations

import math
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.training.safeguards.spike_watch import FEWEST, WINDOW, LossWindow

LOSSES = st.lists(st.floats(min_value=0.01, max_value=20), min_size=FEWEST, max_size=3 * WINDOW)


def window_of(losses, threshold=2.0):
    window = LossWindow(threshold)
    for loss in losses:
        window.add(loss)
    return window


@given(losses=LOSSES, threshold=st.floats(min_value=1.01, max_value=10))
def test_the_threshold_is_that_many_medians_of_the_last_hundred(losses, threshold):
    window, usual = window_of(losses, threshold), median(losses[-WINDOW:])
    assert window.median == usual
    assert window.is_spike(threshold * usual * 1.001)
    assert not window.is_spike(threshold * usual * 0.999)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_a_spike_from_the_first_step_on_and_never_counts(loss):
    window = window_of([])
    assert window.is_spike(loss)
    window.add(loss)
    assert window.losses == []


def test_the_first_losses_are_not_judged():
    assert not window_of([1.0] * (FEWEST - 1)).is_spike(1000.0)
    assert window_of([1.0] * FEWEST).is_spike(1000.0)


def test_a_level_that_stays_becomes_the_usual_one():
    window = window_of([1.0] * WINDOW + [3.0] * (WINDOW // 2 + 1))
    assert not window.is_spike(3.0)
