"""Answers to spikes in the loop: a warning, an update that is left out, or the way back. Engine and data are fakes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from pretrain.checkpoint import generators
from pretrain.checkpoint.contents import Loaded
from pretrain.engine.experts import NOT_MEASURED
from pretrain.engine.protocol import Step
from pretrain.errors import TrainingError
from pretrain.training.event import Event
from pretrain.training.progress import Progress
from pretrain.training.safeguards.spike_response import MOST_IN_A_ROW, MOST_ROLLBACKS, SpikeResponse
from pretrain.training.safeguards.spike_watch import SpikeWatch
from pretrain.training.stopping import Stopping
from pretrain.training.training_data import RewindableBatches
from training.made_up_training import FakeEngine, Log, events_of

pytestmark = pytest.mark.usefixtures("alone")

ROLLBACK = ("train.loss_spike={threshold: 2, action: rollback, leave_out: 2}", "checkpoint.save_interval=10")
QUIET = ("evaluation.interval=0", "logging.log_interval=5")


class Engine(FakeEngine):
    """Learns the numbers of the batches that it is given; the loss of a batch is 1 but for `losses`."""

    def __init__(self, losses, *, reads=4):
        super().__init__()
        self.losses, self.reads = losses, reads
        self.learned = []

    def train_step(self, batches, num_microbatches, timers=None, keep_update=None):
        number = [next(batches) for _ in range(num_microbatches)][-1] // num_microbatches + 1
        loss = torch.tensor(self.losses.get(number, 1.0))
        withheld = keep_update is not None and not keep_update(loss)
        if not withheld:
            self.learned.append(number)
        unmeasured = {"num_zeros_in_grad": None, **NOT_MEASURED}
        return Step(loss=loss, grad_norm=torch.tensor(1.0), skipped=False, withheld=withheld, metrics=unmeasured)

    def parameters_norm(self):
        is_broken = any(not math.isfinite(self.losses.get(number, 1.0)) for number in self.learned)
        return torch.tensor(math.nan if is_broken else 1.0)

    def save(self, directory, progress):
        state = {"learned": self.learned, "rate": self.learning_rate, "progress": dict(progress)}
        (directory / "state").write_text(json.dumps(state))

    def load(self, directory, *, weights_only):
        assert not weights_only
        state = json.loads((directory / "state").read_text())
        self.learned, self.learning_rate = state["learned"], state["rate"]
        return Loaded(progress=state["progress"])


class Events(Log):
    """Keeps the texts of events."""

    def event(self, record):
        self.events.append(record)

    def go_back(self, progress):
        self.events.append(f"lines after {progress.iteration} are dropped")


@pytest.fixture
def watched(training):
    """Make a training of 30 iterations, whose losses are watched as the recipe says."""

    def build(*overrides, losses, said=(), progress=None):
        run = training("train.train_iters=30", *QUIET, *overrides, engine=Engine(losses), progress=progress)
        object.__setattr__(run.meter, "logger", Events())
        progress = run.progress
        to_skip = run.recipe.train.iterations_to_skip
        batches = RewindableBatches(lambda at: (each for each in count(at.consumed_samples // 2)), progress, to_skip)
        setup = SimpleNamespace(recipe=run.recipe, device=torch.device("cpu"), pin_memory=False)
        watch = SpikeWatch.of(setup, progress)
        stopping = Stopping(run.recipe, watch)
        reasons = iter(said)
        stopping.reason = lambda: (stopping.exchange.turn(), next(reasons, ""))[1]
        changed = replace(run, batches=batches, stopping=stopping)
        spikes = SpikeResponse(changed, watch, run.saving, None)
        return replace(changed, events=events_of(changed, run.evaluation, run.saving, spikes))

    return build


def longer(run, iterations):
    """Return the run with as many iterations."""
    return replace(run, length=replace(run.length, iterations=iterations))


def told(run, name=None):
    records = [event for event in run.meter.logger.events if not isinstance(event, str)]
    return [record for record in records if name in (None, record.event)]


def test_a_rollback_goes_back_to_the_checkpoint_and_leaves_out_the_batches_around(watched):
    run = watched(*ROLLBACK, losses={23: 5.0})
    assert run.run() == ""
    assert run.engine.learned == [*range(1, 21), *range(26, 31)]
    assert run.engine.learning_rate == 8 * 25
    assert (run.progress.iteration, run.progress.consumed_samples, run.progress.left_out) == (30, 240, [[21, 25]])
    (event,) = told(run)
    assert (event.event, event.iteration) == ("rollback", 20)
    assert event.text == (
        "loss 5.0000 in iteration 23, 5.0 times the median 1.0000 before: back to iteration 20; iterations 21 to 25 "
        "are left out."
    )
    assert event.numbers == {
        "spike_iteration": 23, "loss": 5.0, "median": 1.0, "first_left_out": 21, "last_left_out": 25,
    }  # fmt: skip
    assert "lines after 20 are dropped" in run.meter.logger.events


@pytest.mark.parametrize("at", [29, 30])
def test_a_spike_in_the_last_iterations_is_judged_before_the_end_is_saved(watched, at):
    run = watched(*ROLLBACK, losses={at: 5.0})
    run.run()
    assert run.engine.learned == list(range(1, at - 2))
    assert run.saving.folder.latest() == 30
    assert run.progress.left_out == [[at - 2, at + 2]]


def test_no_checkpoint_is_written_after_a_spike_that_is_not_judged_yet(watched):
    run = watched(*ROLLBACK, "checkpoint.save_interval=11", "checkpoint.keep=1", losses={22: 5.0})
    run.run()
    assert run.engine.learned == [*range(1, 20), *range(25, 31)]


def test_nothing_is_copied_to_the_nodes_after_a_spike_that_is_not_judged_yet(watched):
    copied = []

    class Copies(Event):
        def after_iteration(self, due):
            if due.copy:
                copied.append(run.engine.learned[:])
            return False

    run = watched(*ROLLBACK, "checkpoint.local_interval=2", "checkpoint.local_dir=/not/written", losses={24: 5.0})
    run = replace(run, events=(*run.events, Copies()))
    run.run()
    assert [len(learned) for learned in copied] == [*range(2, 23, 2), 21, 21, 21, 23]  # back to 20, 22 to 26 left out
    assert not any(24 in learned for learned in copied)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_goes_back_instead_of_ending_the_training(watched, loss):
    run = watched(*ROLLBACK, losses={13: loss})
    assert run.run() == ""
    assert run.engine.learned == [*range(1, 11), *range(16, 31)]


def test_weights_that_are_not_finite_are_not_saved_but_taken_back_though_no_loss_shows_it(watched):
    run = watched(*ROLLBACK, "evaluation.interval=10", losses={})
    run.engine.parameters_norm = lambda: torch.tensor(math.nan if 12 in run.engine.learned else 1.0)
    run.run()
    (event,) = told(run)
    assert event.text == (
        "weights that are not finite after iteration 20: back to iteration 10; iterations 11 to 22 are left out."
    )
    assert (event.iteration, event.numbers["spike_iteration"]) == (10, 20)
    assert run.engine.learned == [*range(1, 11), *range(23, 31)]
    assert run.saving.folder.iterations() == [10, 30]
    evaluated = [event for event in run.meter.logger.events if isinstance(event, str) and event.startswith("valid")]
    assert evaluated == ["valid 10", "valid 20", "valid 30"]


def test_weights_that_are_never_finite_again_end_the_training(watched):
    run = watched(*ROLLBACK, "train.train_iters=400", losses={})
    run.engine.parameters_norm = lambda: torch.tensor(math.nan if len(run.engine.learned) >= 15 else 1.0)
    with pytest.raises(TrainingError, match=r"weights that are not finite after iteration \d+, after 3 rollbacks"):
        run.run()
    assert len(told(run, "rollback")) == MOST_ROLLBACKS


def test_the_first_step_after_a_rollback_may_wait_for_the_data_as_the_first_one_of_all(watched):
    run, medians = watched(*ROLLBACK, losses={23: 5.0}), []
    position, train_step = run.meter.timers.position, run.engine.train_step

    def step(*arguments):
        medians.append(position.median_step() is None)
        return train_step(*arguments)

    run.engine.train_step = step
    run.run()
    taken = [number for number, is_first in enumerate(medians, start=1) if is_first]
    assert taken == [1, 2, 3, 25, 26, 27]  # without a median the limit is that of a start


def test_a_training_that_resumes_has_the_losses_from_before_and_the_stretches(watched):
    first = watched(*ROLLBACK, losses={23: 5.0})
    first.run()
    saved = json.loads((first.saving.folder.directory(30) / "state").read_text())["progress"]
    run = watched(*ROLLBACK, "train.train_iters=40", losses={31: 5.0}, progress=Progress.from_mapping(saved))
    run.engine.learned = first.engine.learned
    run.saving.mark_loaded(run.progress)
    run.run()
    assert run.engine.learned == [*range(1, 21), *range(26, 31), *range(34, 41)]
    assert run.progress.left_out == [[21, 25], [31, 33]]


def test_one_spike_more_than_the_rollbacks_from_one_checkpoint_ends_the_training(watched):
    run = watched(*ROLLBACK, "checkpoint.save_interval=20", losses=dict.fromkeys(range(21, 31), 5.0))
    run = longer(run, 60)
    run.engine.losses.update(dict.fromkeys(range(31, 60), 5.0))
    with pytest.raises(TrainingError, match="after 3 rollbacks to the checkpoint of iteration 20: leaving out batches"):
        run.run()
    assert len(told(run, "rollback")) == MOST_ROLLBACKS


def test_checkpoints_of_the_same_weights_do_not_count_as_progress_nor_remove_others(watched):
    losses = dict.fromkeys(range(23, 400), 5.0)
    run = watched(
        *ROLLBACK, "train.loss_spike.leave_out=15", "checkpoint.keep=2", "train.train_iters=400", losses=losses
    )
    with pytest.raises(TrainingError, match="after 3 rollbacks to the checkpoint of iteration 20: leaving out batches"):
        run.run()
    assert len(told(run, "rollback")) == MOST_ROLLBACKS
    assert run.saving.folder.iterations() == [10, 20]


def test_rollbacks_are_counted_from_zero_after_a_step_that_is_saved(watched):
    spikes = {23, 43, 63, 83, 103}
    run = watched(*ROLLBACK, "train.train_iters=110", losses=dict.fromkeys(spikes, 5.0))
    run.run()
    assert len(told(run, "rollback")) == len(spikes)
    assert run.progress.iteration == 110


def test_a_stretch_that_is_left_out_when_the_training_has_to_end_is_saved(watched):
    run = watched(*ROLLBACK, "train.loss_spike.leave_out=9", losses={23: 5.0}, said=[""] * 29 + ["SIGTERM"])
    run.run()
    assert run.engine.learned == list(range(1, 21))
    assert run.saving.folder.latest() == run.progress.iteration > 24


@pytest.mark.parametrize("at", [23, 24])
def test_a_spike_at_an_exit_interval_is_taken_back_before_the_part_ends(watched, at):
    run = watched(*ROLLBACK, "train.exit_interval=24", losses={at: 5.0})
    assert run.run() == "train.exit_interval 24"
    assert [event.event for event in told(run)] == ["rollback"]
    assert (run.progress.iteration, run.saving.folder.latest()) == (24, 24)


def test_in_fp16_weights_that_are_not_finite_end_the_training(watched):
    run = watched(*ROLLBACK, "precision.dtype=fp16", losses={})
    run.engine.parameters_norm = lambda: torch.tensor(math.nan if len(run.engine.learned) >= 15 else 1.0)
    with pytest.raises(TrainingError, match="weights are not finite"):
        run.run()


def test_before_a_loss_that_is_not_finite_one_iteration_at_least_is_left_out(watched):
    run = watched(*ROLLBACK, "train.loss_spike.leave_out=0", losses={25: math.nan})
    run.run()
    assert run.progress.left_out == [[24, 25]]


def test_a_rollback_shows_what_loading_notices_and_seeds_before(watched, monkeypatch):
    run = watched(*ROLLBACK, losses={23: 5.0})
    order, load = [], run.engine.load

    def noticing(directory, **options):
        order.append("load")
        return replace(load(directory, **options), notices=["the layout has changed"])

    run.engine.load = noticing
    run.saving.seeded = {"python": "state"}
    monkeypatch.setattr(generators, "restore", order.append)
    run.run()
    assert order == [{"python": "state"}, "load"]
    assert "the layout has changed" in run.meter.logger.events


def test_without_a_checkpoint_before_it_there_is_a_warning_alone(watched):
    run = watched(*ROLLBACK, "checkpoint.save_interval=29", losses={25: 5.0})
    run.run()
    assert run.engine.learned == list(range(1, 31))
    (event,) = told(run)
    assert event.text.endswith("before: there is no earlier checkpoint to go back to.")


def test_without_a_checkpoint_spikes_in_a_row_are_warned_of_once(watched):
    run = watched(*ROLLBACK, "checkpoint.save_interval=29", losses={22: 5.0, 23: 5.0, 24: 5.0, 27: 5.0})
    run.run()
    assert [event.numbers["spike_iteration"] for event in told(run)] == [22, 27]


def test_a_training_that_is_asked_to_end_saves_nothing_after_a_spike(watched):
    run = watched(*ROLLBACK, losses={13: 5.0, 3: 1.0}, said=[""] * 12 + ["SIGTERM"])
    run.progress.losses.extend([1.0] * 20)
    assert run.run() == "SIGTERM"
    assert run.saving.folder.latest() == 10
    assert run.engine.learned[-1] == 13


def test_a_warning_is_given_once_for_spikes_in_a_row(watched):
    run = watched("train.loss_spike.threshold=2", losses={22: 5.0, 23: 5.0, 27: 5.0})
    run.run()
    assert [event.numbers["spike_iteration"] for event in told(run)] == [22, 27]
    assert told(run)[0].text == (
        "warning: loss 5.0000 in iteration 22, 5.0 times the median 1.0000 before: the training continues."
    )
    assert run.engine.learned == list(range(1, 31))


def test_a_skipped_update_is_counted_and_leaves_weights_and_schedule(watched):
    run = watched("train.loss_spike={threshold: 2, action: skip}", losses={22: 5.0, 24: math.nan})
    run.run()
    assert run.engine.learned == [number for number in range(1, 31) if number not in (22, 24)]
    assert run.engine.learning_rate == 8 * 28
    skipped = {record.iteration: record.metrics["skipped_iterations"] for record in run.meter.logger.records}
    assert (skipped[25], skipped[30]) == (2, 0)
    assert {record.metrics["lm_loss"] for record in run.meter.logger.records} == {1.0}
    assert [event.iteration for event in told(run, "loss_spike")] == [22, 24]


def test_updates_are_not_left_out_forever(watched):
    run = watched("train.loss_spike={threshold: 2, action: skip}", losses=dict.fromkeys(range(22, 200), math.nan))
    run = longer(run, 100)
    with pytest.raises(TrainingError, match=rf"the last {MOST_IN_A_ROW} losses up to iteration 71 were over"):
        run.run()
