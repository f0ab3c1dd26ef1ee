"""The meter gives every metric of the table a value."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pretrain.report.flops import Speedometer
from pretrain.report.metric_table import NAMES
from pretrain.report.timers import PhaseTimers
from pretrain.training.reporting.meter import Meter

RECIPE = SimpleNamespace(
    model=SimpleNamespace(seq_length=32),
    precision=SimpleNamespace(dtype="fp16"),
    logging=SimpleNamespace(log_params_norm=True, log_timers=False),
)
INTERVAL = SimpleNamespace(
    iterations=2, samples=16, seconds=1.0, skipped_iterations=1, withheld_iterations=1, start=lambda: None
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
    )
    taken = SimpleNamespace(step=SimpleNamespace(grad_norm=torch.tensor(1.5), **step), batch=8, learning_rate=0.1)
    progress = SimpleNamespace(iteration=2, consumed_samples=16)
    meter.log(SimpleNamespace(lm_loss=4.0, nan_iterations=0), taken, ENGINE, progress)
    return records[0]


def test_a_record_has_the_metrics_of_the_table_in_its_order():
    metrics = logged(metrics={"num_zeros_in_grad": torch.tensor(3)}).metrics
    assert tuple(metrics) == NAMES
    expected = {"lm_loss": 4.0, "grad_norm": 1.5, "params_norm": 7.0, "loss_scale": 1024.0, "num_zeros_in_grad": 3}
    assert expected.items() <= metrics.items()


def test_an_engine_that_does_not_name_its_metrics_is_an_error():
    with pytest.raises(ValueError, match="without a value: num_zeros_in_grad"):
        logged(metrics={})


def test_an_engine_with_a_metric_without_a_row_is_an_error():
    with pytest.raises(ValueError, match="largest_loss"):
        logged(metrics={"num_zeros_in_grad": None, "largest_loss": 9.0})
