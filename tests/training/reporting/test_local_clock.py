"""The clock measures the first calls of the rank's first attention layers in a step, and nothing else."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from torch import nn

from pretrain.model.attention import CoreAttention
from pretrain.training.reporting.stragglers import CALLS, LocalClock, _timing_event


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
    clock.end_step()
    assert clock.take() == pytest.approx(2.0)
    assert clock.take() == 0.0


def test_later_micro_batches_and_layers_are_not_measured():
    model, clock = clocked(CALLS + 3, count())
    clock.begin_step()
    forward(model)
    forward(model)
    assert clock._calls == CALLS


def test_a_clock_that_is_detached_measures_nothing():
    model, clock = clocked(2, count())
    clock.detach()
    clock.begin_step()
    forward(model)
    assert clock.take() == 0.0


def test_evaluations_are_not_measured():
    model, clock = clocked(2, count())
    forward(model)
    clock.begin_step()
    clock.end_step()
    forward(model)
    assert clock.take() == 0.0


def test_a_device_whose_module_has_no_events_is_timed_by_the_host(monkeypatch):
    monkeypatch.setattr("torch.get_device_module", lambda device: object())
    assert _timing_event(torch.device("meta")) is None
