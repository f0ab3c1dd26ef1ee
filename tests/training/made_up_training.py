"""The loop with an engine, data and outputs that are made up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pretrain.checkpoint import storage
from pretrain.checkpoint.folder import CheckpointFolder
from pretrain.engine.experts import NOT_MEASURED
from pretrain.engine.protocol import Step
from pretrain.recipe.layout import lay_out
from pretrain.report.flops import Speedometer
from pretrain.report.metrics import EvalRecord
from pretrain.report.timers import PhaseTimers
from pretrain.training.event import GcControl
from pretrain.training.events import Checkpoints, Evaluations, LogLines
from pretrain.training.loop import Training
from pretrain.training.progress import Length, Progress
from pretrain.training.reporting.meter import Interval, Meter
from pretrain.training.safeguards.health import Health
from pretrain.training.saving import Saving
from pretrain.training.training_data import RewindableBatches


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
        return Step(loss=loss, grad_norm=norm, skipped=skipped, metrics={"num_zeros_in_grad": None, **NOT_MEASURED})

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
    monkeypatch.setattr(storage, "save", lambda engine, directory, progress, send: engine.save(directory, progress))
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


class MadeUpTraining(Training):
    """A training whose events of a kind have a name of their own."""

    @property
    def saving(self):
        return self.event(Saving)

    @property
    def evaluation(self):
        return self.event(Evaluations).evaluation

    @property
    def garbage(self):
        return self.event(GcControl)

    def event(self, kind):
        return next(event for event in self.events if isinstance(event, kind))

    def without(self, *kinds):
        """Return the training without the events of these kinds."""
        return replace(self, events=tuple(event for event in self.events if not isinstance(event, kinds)))


def events_of(run, evaluation, saving, spikes=None, *, is_pending=False):
    """Return the events that a run has beside those that are switched off, in the order of the assembly."""
    health = Health(run, saving, None)
    events = (
        saving,
        spikes,
        LogLines(run, health),
        saving and Checkpoints(run, saving, health, spikes),
        Evaluations(run, evaluation, is_pending),
        run.meter.garbage,
    )
    return tuple(event for event in events if event is not None)


@pytest.fixture
def training(make, tmp_path, files_of_fake_engines):
    """Make a training of the smallest recipe; `said` are the reasons to stop after each iteration."""

    def build(*overrides, engine=None, said=(), progress=None, is_pending=False):
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
            garbage=GcControl(1, is_manual=False),
        )
        run = MadeUpTraining(
            recipe=recipe,
            length=Length.of(recipe, done, lay_out(recipe, 1)),
            progress=done,
            engine=engine or FakeEngine(),
            batches=RewindableBatches(lambda progress: (batch for batch in ()), done, recipe.train.iterations_to_skip),
            stopping=SimpleNamespace(reason=lambda: next(reasons, ""), settle=lambda: None),
            meter=meter,
        )
        evaluation = SimpleNamespace(
            splits=("valid", "test"), run=lambda split, iteration: EvalRecord.of(split, iteration, 3.0)
        )
        saving = Saving(CheckpointFolder(tmp_path, recipe.checkpoint.keep), rank=0)
        return replace(run, events=events_of(run, evaluation, saving, is_pending=is_pending))

    return build
