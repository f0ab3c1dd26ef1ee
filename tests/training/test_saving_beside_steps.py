"""A run with `checkpoint.async_save`: checkpoints become complete beside its steps, and its end waits for them."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from pretrain.checkpoint.background import BackgroundSaves
from pretrain.errors import CheckpointError, TrainingError
from pretrain.training import saving as saving_module
from pretrain.training.saving import Saving
from training.made_up_training import FakeEngine, events_of

pytestmark = pytest.mark.usefixtures("alone")


class Disk:
    """Writes what a FakeEngine has beside its steps, when it is told to.

    Attributes:
        go: lets it write.
        error: of writing.
    """

    def __init__(self):
        self.go = threading.Event()
        self.error = None

    def take(self, engine, directory, progress, *, copies, send):
        assert copies
        self.engine, self.directory, self.progress = engine, directory, progress
        return self

    def write(self, group):
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        self.engine.save(self.directory, self.progress)


class Engine(FakeEngine):
    """Calls `before[n]` before its n-th step."""

    def __init__(self, before=None, **options):
        super().__init__(**options)
        self.before = before or {}

    def train_step(self, batches, num_microbatches, timers=None, keep_update=None):
        self.before.get(len(self.steps) + 1, lambda: None)()
        return super().train_step(batches, num_microbatches, timers, keep_update)


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    monkeypatch.setattr(saving_module, "Snapshot", disk)
    return disk


@pytest.fixture
def beside(training):
    """Make a training that saves beside its steps every second iteration."""

    def build(*overrides, **options):
        run = training("logging.log_interval=99", "checkpoint.save_interval=2", *overrides, **options)
        folder = run.saving.folder
        saves = BackgroundSaves(folder, is_main=True, notify=run.meter.logger.note, timeout_minutes=1)
        return replace(run, events=events_of(run, run.evaluation, Saving(folder, 0, saves)))

    return build


def events(run):
    """Return what the user was told: iterations of checkpoints, with a mark for those written beside the steps."""
    checkpoints = [event for event in run.meter.logger.events if event.startswith("checkpoint")]
    return [event.partition(", complete")[0] + ("..." if "complete" in event else "") for event in checkpoints]


def until_written(run):
    """Wait for the disk, as a long step does."""
    run.saving.background._save.thread.join(60)


def test_steps_go_on_while_one_is_written_and_the_last_one_is_waited_for(beside, disk):
    engine = Engine()
    run = beside("train.train_iters=5", engine=engine)
    seen = []
    engine.before = {
        3: lambda: seen.append((run.saving.folder.latest(), events(run))),
        4: lambda: (disk.go.set(), until_written(run)),
    }
    assert run.run() == ""
    assert seen == [(None, [])]
    assert events(run) == ["checkpoint 2...", "checkpoint 4...", "checkpoint 5"]
    assert (run.saving.folder.latest(), run.saving.folder.iterations()) == (5, [2, 4, 5])


def test_an_error_of_the_disk_ends_the_run_at_the_next_step(beside, disk):
    disk.error = CheckpointError("no room")
    engine = Engine()
    run = beside("train.train_iters=99", engine=engine)
    engine.before = {3: lambda: (disk.go.set(), until_written(run))}
    with pytest.raises(CheckpointError, match="no room"), run.saving:
        run.run()
    assert len(engine.steps) == 3
    assert run.saving.folder.latest() is None


@pytest.mark.parametrize("stop", ["train.exit_interval=3", "SIGTERM"])
def test_a_run_that_stops_waits_for_the_one_that_is_written_and_then_for_its_last(beside, disk, stop):
    engine = Engine(before={3: lambda: threading.Timer(0.1, disk.go.set).start()})
    if stop == "SIGTERM":
        run = beside("train.train_iters=99", engine=engine, said=["", "", stop])
    else:
        run = beside("train.train_iters=99", stop, engine=engine)
    assert stop.startswith(run.run().split()[0])
    assert events(run) == ["checkpoint 2...", "checkpoint 3"]
    assert (run.saving.folder.latest(), run.saving.folder.iterations()) == (3, [2, 3])


def test_a_loss_that_is_not_finite_names_the_checkpoint_that_was_being_written(beside, disk):
    engine = Engine(before={3: lambda: threading.Timer(0.1, disk.go.set).start()}, breaks_at=3)
    run = beside("train.train_iters=99", "logging.log_interval=1", engine=engine)
    with pytest.raises(TrainingError, match=r"up to 3\. The latest checkpoint is iteration 2\.\n"), run.saving:
        run.run()


def test_any_error_waits_for_the_one_that_is_written(beside, disk):
    def fail():
        threading.Timer(0.1, disk.go.set).start()
        message = "of the device"
        raise RuntimeError(message)

    run = beside("train.train_iters=99", engine=Engine(before={3: fail}))
    with pytest.raises(RuntimeError, match="of the device"), run.saving:
        run.run()
    assert run.saving.folder.latest() == 2
    assert events(run) == ["checkpoint 2..."]


def test_a_second_interrupt_does_not_wait(beside, disk):
    def interrupt():
        raise KeyboardInterrupt

    run = beside("train.train_iters=99", engine=Engine(before={3: interrupt}))
    with pytest.raises(KeyboardInterrupt), run.saving:
        run.run()
    assert run.saving.folder.latest() is None
    disk.go.set()
    run.saving.finish()
