"""Micro-batches of a training: read by workers that import no more than reading needs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pretrain.bridge.megatron import prepare_to_read
from pretrain.training import training_data
from pretrain.training.training_data import TrainingData


@pytest.fixture
def made(monkeypatch):
    """The options of the micro-batches that are made."""
    options = []
    monkeypatch.setattr(training_data, "MicroBatches", lambda dataset, **given: options.append(given) or iter(()))
    return options


def test_workers_leave_out_the_compiler(made):
    recipe = SimpleNamespace(train=SimpleNamespace(micro_batch_size=1), data=SimpleNamespace(num_workers=2))
    data = SimpleNamespace(
        recipe=recipe, layout=SimpleNamespace(data_parallel_size=1), engine=SimpleNamespace(reads_data=True),
        data_parallel_rank=0, pin_memory=False,
    )  # fmt: skip
    TrainingData._batches(data, object(), consumed_samples=0)
    (options,) = made
    assert options["prepare_worker"] is prepare_to_read
    assert options["num_workers"] == 2
