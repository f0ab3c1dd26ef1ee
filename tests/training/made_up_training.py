"""The loop with an engine, data and outputs that are made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pretrain.checkpoint import storage
from pretrain.checkpoint.folder import CheckpointFolder
from pretrain.engine.protocol import Step
from pretrain.recipe.layout import lay_out
from pretrain.report.flops import Speedometer
from pretrain.report.records import EvalRecord
from pretrain.report.timers import PhaseTimers
from pretrain.training.batch_sizes import BatchSizes, Length, total_iterations
from pretrain.training.loop import Training
from pretrain.training.progress import Progress
from pretrain.training.reporting.interval import Interval
from pretrain.training.reporting.meter import Meter
from pretrain.training.safeguards.iterations_left_out import LeftOut
from pretrain.training.safeguards.step_batches import StepBatches
from pretrain.training.saving import Saving


class FakeEngine:
    """Loses 0.1 a step; skips steps and gives nan on request. The learning rate counts the samples of the schedule."""

    def __init__(self, *, skips=(), breaks_at=None):
        self.skips, self.breaks_at = skips, breaks_at
        self.steps = []
        self.learning_rate = 0
        self.loss_scale = 1024.0

    def train_step(self, batches, num_microbatches, timers=None, keep_update=None):
        self.steps.append(num_microbatches)
        number = len(self.steps)
        broken = self.breaks_at is not None and number >= self.breaks_at
        loss = torch.tensor(torch.nan if broken else 5 - 0.1 * number)
        skipped = number in self.skips
        norm = None if skipped else torch.tensor(1.5)
        return Step(loss=loss, grad_norm=norm, skipped=skipped, metrics={"num_zeros_in_grad": None})

    def advance_schedule(self, samples):
        self.learning_rate += samples

    def parameters_norm(self):
        is_broken = self.breaks_at is not None and len(self.steps) >= self.breaks_at
        return torch.tensor(torch.nan if is_broken else 7.0)

    def save(self, directory, progress):
        (directory / "progress").write_text(str(progress["iteration"]))


@pytest.fixture
def files_of_fake_engines(monkeypatch):
    """Let the storage write and read what a FakeEngine has."""
    monkeypatch.setattr(storage, "save", lambda engine, directory, progress: engine.save(directory, progress))
    monkeypatch.setattr(storage, "load", lambda engine, directory, **options: engine.load(directory, **options))


class Log:
    """A logger that records its calls in order."""

    def __init__(self):
        self.records = []
        self.events = []

    def train(self, record):
        self.records.append(record)
        self.events.append(f"train {record.iteration}")

    def evaluation(self, record, consumed_samples):
        self.events.append(f"{record.split} {record.iteration}")

    def note(self, text):
        first, _, rest = text.partition(": ")
        self.events.append(f"{first} {rest.rpartition('_')[2].lstrip('0')}".strip())

    def timers(self, spreads, iteration):
        self.events.append(f"timers {iteration}")


@pytest.fixture
def training(make, tmp_path, files_of_fake_engines):
    """Make a training of the smallest recipe; `said` are the reasons to stop after each iteration."""

    def build(*overrides, engine=None, said=(), progress=None, **attributes):
        recipe = make(*overrides)
        reasons, done = iter(said), progress or Progress()
        meter = Meter(
            recipe=recipe,
            logger=Log(),
            timers=PhaseTimers(),
            interval=Interval(torch.device("cpu")),
            speedometer=Speedometer(seq_length=32, flops_per_sequence=1e6, world_size=1, peak_flops=None),
            device=torch.device("cpu"),
            memory_peak=lambda: 123,
        )
        return Training(
            recipe=recipe,
            length=Length(
                iterations=total_iterations(recipe, done), sizes=BatchSizes.of(recipe), layout=lay_out(recipe, 1)
            ),
            progress=done,
            engine=engine or FakeEngine(),
            batches=StepBatches(lambda progress: (batch for batch in ()), done),
            left_out=LeftOut.of(recipe, done),
            evaluation=SimpleNamespace(
                splits=("valid", "test"), run=lambda split, iteration: EvalRecord.of(split, iteration, 3.0)
            ),
            saving=Saving(CheckpointFolder(tmp_path, recipe.checkpoint.keep), rank=0),
            stopping=SimpleNamespace(reason=lambda: next(reasons, ""), settle=lambda: None),
            garbage=SimpleNamespace(after=lambda iteration: None, collect=lambda: None),
            meter=meter,
            continuation=lambda: "def main",
            **attributes,
        )

    return build
