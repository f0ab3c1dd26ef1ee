"""An evaluation is the mean over so many global batches of held-out text."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from pretrain.training.training_data import Evaluation


def test_the_loss_is_the_mean_over_batches_of_a_fresh_reading():
    readings = []

    def batches(split):
        readings.append(split)
        return iter([2.0, 4.0, 3.0, 100.0])

    def evaluate(given, num_microbatches, iters):
        return torch.tensor([next(given) for _ in range(iters)]).mean()

    engine = SimpleNamespace(evaluate=evaluate)
    evaluation = Evaluation(engine=engine, batches=batches, splits=("valid",), num_microbatches=4, iters=3)
    for iteration in (10, 20):
        record = evaluation.run("valid", iteration)
        assert (record.split, record.iteration, record.lm_loss) == ("valid", iteration, 3.0)
        assert record.ppl == pytest.approx(math.exp(3.0))
    assert readings == ["valid", "valid"]
