"""Losses are judged one iteration late, or at once where they are settled; skipped steps have none."""

from __future__ import annotations

import math
from statistics import median

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.engine.protocol import Step
from pretrain.training.safeguards.spike_watch import FEWEST, WINDOW, HostCopies, LossWindow, SpikeWatch
from pretrain.training.stopping import Exchange

pytestmark = pytest.mark.usefixtures("alone")


def watching(*, losses=(1.0,) * 20, **options):
    copies = HostCopies(torch.device("cpu"), pin_memory=False)
    watch = SpikeWatch(2.0, copies, list(losses), **{"judges_nan": True, "is_early": False, **options})
    return watch, Exchange(watch, timeout_minutes=1)


def step(loss, *, skipped=False):
    return Step(loss=torch.tensor(loss), grad_norm=None, skipped=skipped)


def test_a_loss_is_judged_one_turn_after_that_of_its_own_iteration():
    watch, exchange = watching()
    watch.see(21, step(5.0))
    exchange.turn()
    assert watch.take() is None
    watch.see(22, step(1.0))
    exchange.turn()
    spike = watch.take()
    assert (spike.iteration, spike.loss, spike.median) == (21, 5.0, 1.0)
    assert watch.take() is None


def test_settling_judges_all_so_far_in_their_order():
    watch, exchange = watching()
    watch.see(21, step(5.0))
    exchange.turn()
    watch.see(22, step(7.0))
    watch.settle(exchange)
    assert [watch.take().iteration, watch.take().iteration, watch.take()] == [21, 22, None]


def test_forgotten_steps_are_never_judged():
    watch, exchange = watching()
    watch.see(21, step(5.0))
    exchange.turn()
    watch.see(22, step(5.0))
    watch.forget(exchange)
    watch.settle(exchange)
    assert watch.take() is None


def test_a_step_that_the_engine_skips_without_a_loss_scale_is_a_spike_also_with_a_usual_loss():
    losses = [1.0] * 20
    watch, exchange = watching(losses=losses)
    for iteration, loss in ((21, math.nan), (22, 1.0)):
        watch.see(iteration, step(loss, skipped=True))
        exchange.turn()
    watch.settle(exchange)
    first, other = watch.take(), watch.take()
    assert (first.iteration, math.isnan(first.loss), first.of) == (21, True, "loss")
    assert (other.iteration, other.loss, other.of) == (22, 1.0, "gradients")
    assert len(watch._window.losses) == 20


def test_steps_that_an_overflow_of_fp16_skipped_are_not_judged():
    watch, exchange = watching(judges_nan=False)
    watch.see(21, step(math.nan, skipped=True))
    watch.settle(exchange)
    assert watch.take() is None


@pytest.mark.parametrize("judges_nan", [True, False])
def test_fp16_recovers_by_itself_from_losses_that_are_not_finite(judges_nan):
    watch, exchange = watching(judges_nan=judges_nan)
    watch.see(21, step(math.inf))
    watch.settle(exchange)
    assert (watch.take() is not None) == judges_nan


def test_a_loss_that_is_judged_before_the_update_counts_only_if_it_is_kept():
    losses = [1.0] * 20
    watch, exchange = watching(losses=losses, is_early=True)
    assert not watch.keeps(21, torch.tensor(5.0), exchange)
    assert watch.take().iteration == 21
    assert watch.keeps(22, torch.tensor(1.5), exchange)
    watch.see(22, step(1.5))
    watch.settle(exchange)
    assert watch.take() is None
    assert not watch.keeps(23, torch.tensor(2.01), exchange)  # 2 x the median, in which 5.0 is not


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
