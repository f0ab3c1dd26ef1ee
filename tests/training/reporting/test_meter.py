"""The meter gives every metric of the table a value."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from pretrain.engine.experts import NOT_MEASURED
from pretrain.engine.protocol import Step
from pretrain.report.flops import Speedometer
from pretrain.report.metric_table import NAMES
from pretrain.report.timers import PhaseTimers
from pretrain.training.reporting.meter import Interval, Meter

RECIPE = SimpleNamespace(
    model=SimpleNamespace(seq_length=32),
    precision=SimpleNamespace(dtype="fp16"),
    logging=SimpleNamespace(log_params_norm=True, log_timers=False),
)
INTERVAL = SimpleNamespace(
    iterations=2,
    samples=16,
    seconds=1.0,
    skipped_iterations=1,
    withheld_iterations=1,
    last_batch=8,
    last_learning_rate=0.1,
    start=lambda: None,
)
ENGINE = SimpleNamespace(loss_scale=1024.0, parameters_norm=lambda: torch.tensor(7.0))


def logged(**step):
    """Return the record of an interval whose last step was this."""
    records = []
    meter = Meter(
        recipe=RECIPE,
        logger=SimpleNamespace(train=records.append),
        timers=PhaseTimers(),
        interval=INTERVAL,
        speedometer=Speedometer(seq_length=32, flops_per_sequence=1e6, world_size=1, peak_flops=None),
        device=torch.device("cpu"),
        memory_peak=lambda: 123,
        garbage=None,
    )
    taken = SimpleNamespace(grad_norm=torch.tensor(1.5), **step)
    progress = SimpleNamespace(iteration=2, consumed_samples=16)
    meter.log(SimpleNamespace(lm_loss=4.0, nan_iterations=0), taken, ENGINE, progress)
    return records[0]


def test_a_record_has_the_metrics_of_the_table_in_its_order():
    metrics = logged(metrics={"num_zeros_in_grad": torch.tensor(3), **NOT_MEASURED}).metrics
    assert tuple(metrics) == NAMES
    expected = {"lm_loss": 4.0, "grad_norm": 1.5, "params_norm": 7.0, "loss_scale": 1024.0, "num_zeros_in_grad": 3}
    assert expected.items() <= metrics.items()


def test_an_engine_that_does_not_name_its_metrics_is_an_error():
    with pytest.raises(ValueError, match="no value for num_zeros_in_grad"):
        logged(metrics=NOT_MEASURED)


def test_an_engine_with_a_metric_without_a_row_is_an_error():
    with pytest.raises(ValueError, match="largest_loss"):
        logged(metrics={"num_zeros_in_grad": None, "largest_loss": 9.0})


pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def interval():
    return Interval(torch.device("cpu"))


def step(loss, *, skipped=False):
    return Step(loss=None if loss is None else torch.tensor(loss), grad_norm=None, skipped=skipped)


def add(interval, *steps):
    for one in steps:
        interval.add(one, samples=8, learning_rate=1e-3)
    return interval.take()


def test_the_loss_is_the_mean_over_iterations(interval):
    totals = add(interval, step(2.0), step(3.0), step(4.0))
    assert (totals.lm_loss, totals.nan_iterations) == (3.0, 0)
    assert (interval.iterations, interval.samples, interval.skipped_iterations) == (3, 24, 0)


def test_steps_whose_update_was_withheld_do_not_count_for_the_loss_and_are_no_overflows(interval):
    spike = Step(loss=torch.tensor(9.0), grad_norm=None, skipped=False, withheld=True)
    totals = add(interval, step(2.0), spike, step(4.0))
    assert (totals.lm_loss, totals.nan_iterations) == (3.0, 0)
    assert (interval.skipped_iterations, interval.withheld_iterations, interval.skipped_in_a_row) == (0, 1, 0)


def test_skipped_iterations_do_not_count_for_the_loss(interval):
    totals = add(interval, step(2.0), step(torch.inf, skipped=True), step(4.0))
    assert (totals.lm_loss, totals.nan_iterations) == (3.0, 0)
    assert (interval.iterations, interval.skipped_iterations) == (3, 1)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_losses_that_are_not_finite_are_counted_separately(interval, broken):
    totals = add(interval, step(2.0), step(broken), step(broken))
    assert (totals.lm_loss, totals.nan_iterations) == (2.0, 2)


@pytest.mark.parametrize("steps", [(), (step(1.0, skipped=True),), (step(None),)], ids=["none", "skipped", "elsewhere"])
def test_without_a_loss_there_is_none(interval, steps):
    assert add(interval, *steps).lm_loss is None


def test_a_new_interval_begins_at_zero(interval):
    add(interval, step(torch.nan), step(2.0, skipped=True))
    interval.start()
    assert (interval.iterations, interval.samples, interval.skipped_iterations, interval.seconds) == (0, 0, 0, 0)
    assert add(interval, step(5.0)).lm_loss == 5.0


def test_the_clock_is_stopped_in_a_pause(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    interval = Interval(torch.device("cpu"))
    now[0] += 2  # training
    interval.pause()
    now[0] += 50  # evaluation
    interval.resume()
    now[0] += 3  # training
    interval.take()
    assert interval.seconds == 5


def test_adding_does_not_wait_for_the_device():
    interval = Interval(torch.device("meta"))  # a value of meta cannot be read on the host
    interval.add(
        Step(loss=torch.zeros((), device="meta"), grad_norm=None, skipped=False), samples=1, learning_rate=1e-3
    )
    assert interval.iterations == 1
