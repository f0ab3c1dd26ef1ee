"""The loop: what happens after which iteration. Engine, data and outputs are made up."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pretrain.checkpoint import storage
from pretrain.checkpoint.folder import CheckpointFolder
from pretrain.engine.protocol import Step
from pretrain.errors import TrainingError
from pretrain.observe.records import EvalRecord
from pretrain.observe.throughput import Speedometer
from pretrain.observe.timers import PhaseTimers
from pretrain.recipe.layout import lay_out
from pretrain.training.batch_sizes import BatchSizes, Length, total_iterations
from pretrain.training.loop import Training
from pretrain.training.progress import Progress
from pretrain.training.reporting.interval import Interval
from pretrain.training.reporting.meter import Meter
from pretrain.training.reporting.target import verdict
from pretrain.training.safeguards.iterations_left_out import LeftOut
from pretrain.training.safeguards.step_batches import StepBatches
from pretrain.training.saving import Saving

pytestmark = pytest.mark.usefixtures("alone")


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
        return Step(loss=loss, grad_norm=None if skipped else torch.tensor(1.5), skipped=skipped)

    def advance_schedule(self, samples):
        self.learning_rate += samples

    def parameters_norm(self):
        is_broken = self.breaks_at is not None and len(self.steps) >= self.breaks_at
        return torch.tensor(torch.nan if is_broken else 7.0)

    def save(self, directory, progress):
        (directory / "progress").write_text(str(progress["iteration"]))


@pytest.fixture(autouse=True)
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
def training(make, tmp_path):
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


def test_logs_evaluations_and_checkpoints_come_at_their_intervals_and_at_the_end(training):
    run = training(
        "train.train_iters=5", "logging.log_interval=2", "evaluation.interval=3", "checkpoint.save_interval=4"
    )
    assert run.run() == ""
    assert run.meter.logger.events == [
        "train 2", "valid 3", "train 4", "checkpoint 4", "train 5", "checkpoint 5", "valid 5", "test 5",
        "the model continues def main",
    ]  # fmt: skip


def test_records_and_checkpoints_of_the_last_iteration_are_written_once(training):
    run = training(
        "train.train_iters=4", "logging.log_interval=2", "evaluation.interval=2", "checkpoint.save_interval=2"
    )
    run.run()
    assert run.meter.logger.events == [
        "train 2", "checkpoint 2", "valid 2", "train 4", "checkpoint 4", "valid 4", "test 4",
        "the model continues def main",
    ]  # fmt: skip


@pytest.mark.parametrize(("target", "word"), [(3.0, "reached"), (2.9, "missed")])
def test_at_the_end_a_run_says_whether_its_target_was_reached(training, target, word):
    run = training("train.train_iters=4", "evaluation.interval=2", f"evaluation.target_loss={target}")
    run.run()
    told = f"target {word} loss {target:g}"  # as `Log` shortens it
    assert [event for event in run.meter.logger.events if event.startswith("target")] == [told]
    stopped = training("train.train_iters=4", "evaluation.target_loss=3", said=["", "SIGTERM"])
    stopped.run()
    assert not any(event.startswith("target") for event in stopped.meter.logger.events)


def test_a_loss_of_nan_reaches_no_target():
    assert verdict(3.0, EvalRecord.of("valid", 1, math.nan)) == (
        "target missed: validation loss nan, evaluation.target_loss 3"
    )


def test_a_record_describes_its_interval(training):
    run = training("train.train_iters=4", "logging.log_interval=2", "logging.log_params_norm=true")
    run.run()
    record = run.meter.logger.records[-1]
    assert record.lm_loss == pytest.approx(4.65)  # of iterations 3 and 4
    assert (record.iteration, record.consumed_samples, record.consumed_tokens) == (4, 32, 32 * 32)
    assert (record.global_batch_size, record.learning_rate, record.grad_norm) == (8, 24, 1.5)
    assert (record.params_norm, record.memory_peak_bytes, record.loss_scale) == (7.0, 123, None)


def test_a_reason_to_stop_is_followed_by_a_record_and_a_checkpoint_but_no_evaluation(training):
    run = training("train.train_iters=9", "logging.log_interval=5", "evaluation.interval=3", said=["", "", "SIGTERM"])
    assert run.run() == "SIGTERM"
    assert run.meter.logger.events == ["train 3", "checkpoint 3"]


def test_exit_interval(training):
    run = training("train.train_iters=9", "train.exit_interval=4", "logging.log_interval=9")
    assert run.run() == "train.exit_interval 4"
    assert run.progress.iteration == 4
    assert run.meter.logger.events == ["train 4", "checkpoint 4"]


@pytest.mark.parametrize("dies_at", [2, 4])
@pytest.mark.parametrize("save_interval", [2, 0])
def test_a_run_killed_in_an_evaluation_has_written_its_record_and_checkpoint(training, dies_at, save_interval):
    def evaluate(split, iteration):
        if iteration == dies_at:
            raise KeyboardInterrupt
        return EvalRecord.of(split, iteration, 3.0)

    run = training("train.train_iters=4", "evaluation.interval=2", f"checkpoint.save_interval={save_interval}")
    run.evaluation.run = evaluate
    with pytest.raises(KeyboardInterrupt):
        run.run()
    due = [2, 4] if save_interval else [4]
    assert run.saving.folder.iterations() == [iteration for iteration in due if iteration <= dies_at]


def test_a_run_that_was_killed_in_the_last_evaluation_evaluates_when_it_is_resumed(training):
    run = training("train.train_iters=4", progress=Progress(iteration=4, consumed_samples=32))
    run.saving.mark_loaded(run.progress)
    assert run.run() == ""
    assert run.meter.logger.events == ["valid 4", "test 4", "the model continues def main"]


def test_a_run_that_was_killed_between_a_checkpoint_and_its_evaluation_begins_with_that(training):
    overrides = ("train.train_iters=4", "evaluation.interval=2", "logging.log_interval=9")
    run = training(*overrides, progress=Progress(iteration=2, consumed_samples=16), owes_evaluation=True)
    run.run()
    assert run.meter.logger.events[:2] == ["valid 2", "train 4"]


def test_an_exit_interval_saves_before_it_evaluates(training):
    run = training("train.train_iters=9", "train.exit_interval=4", "evaluation.interval=2", "logging.log_interval=9")
    run.run()
    assert run.meter.logger.events == ["valid 2", "train 4", "checkpoint 4", "valid 4"]


@pytest.mark.parametrize("every", [2, 4])
def test_the_last_iteration_is_not_an_early_exit(training, every):
    run = training("train.train_iters=4", f"train.exit_interval={every}", progress=Progress(2, 16))
    assert run.run() == ""
    assert run.meter.logger.events[-3:] == ["valid 4", "test 4", "the model continues def main"]


def test_garbage_is_collected_after_steps_evaluations_and_checkpoints(training):
    overrides = ("train.train_iters=2", "evaluation.interval=1", "checkpoint.save_interval=1", "logging.log_interval=9")
    run = training(*overrides)
    events = run.meter.logger.events
    run.garbage.after = lambda iteration: events.append(f"after {iteration}")
    run.garbage.collect = lambda: events.append("collect")
    run.run()
    assert events == [
        "checkpoint 1", "collect", "valid 1", "collect", "after 1", "train 2", "after 2",
        "checkpoint 2", "collect", "valid 2", "collect", "test 2", "collect", "the model continues def main",
    ]  # fmt: skip


def test_a_resumed_run_does_what_is_left(training):
    engine = FakeEngine()
    progress = Progress(iteration=7, consumed_samples=56)
    run = training("train.train_iters=9", engine=engine, progress=progress)
    run.run()
    assert len(engine.steps) == 2
    assert run.progress == Progress(iteration=9, consumed_samples=72)


def test_a_run_that_is_done_only_evaluates(training):
    engine = FakeEngine()
    run = training("train.train_iters=9", engine=engine, progress=Progress(iteration=9, consumed_samples=72))
    assert run.run() == ""
    assert engine.steps == []


def test_a_growing_batch_has_growing_micro_batches(training):
    engine = FakeEngine()
    overrides = ("train.train_iters=null", "train.train_samples=24", "train.rampup_batch_size=[2, 2, 12]")
    run = training(*overrides, engine=engine)
    run.run()
    sizes = [2 * micro_batches for micro_batches in engine.steps]
    assert sizes == [2, 2, 4, 6, 8]
    assert engine.learning_rate == run.progress.consumed_samples == sum(sizes)


def test_a_skipped_step_is_counted_and_leaves_the_schedule(training):
    engine = FakeEngine(skips={2})
    run = training("train.train_iters=3", "logging.log_interval=3", "precision.dtype=fp16", engine=engine)
    run.run()
    (record,) = run.meter.logger.records
    assert (record.skipped_iterations, record.loss_scale, record.lm_loss) == (1, 1024.0, pytest.approx(4.8))
    assert run.progress == Progress(iteration=3, consumed_samples=24, skipped_iterations=1)
    assert engine.learning_rate == 16


def test_a_loss_that_is_not_finite_ends_the_run(training):
    run = training("train.train_iters=9", "logging.log_interval=3", engine=FakeEngine(breaks_at=5))
    with pytest.raises(TrainingError, match=r"within the 3 iterations up to 6\. There is no checkpoint\.\nLower"):
        run.run()


def test_broken_weights_are_never_saved(training):
    run = training(
        "train.train_iters=9",
        "logging.log_interval=9",
        "checkpoint.save_interval=2",
        "checkpoint.keep=1",
        engine=FakeEngine(breaks_at=3),
    )
    with pytest.raises(TrainingError, match=r"up to 4\. The latest checkpoint is iteration 2\.\nLower"):
        run.run()
    assert run.saving.folder.iterations() == [2]


def test_fp16_continues_with_a_smaller_scale(training):
    run = training(
        "train.train_iters=2",
        "logging.log_interval=1",
        "precision.dtype=fp16",
        engine=FakeEngine(breaks_at=2, skips={2}),
    )
    assert replace(run, saving=None).run() == ""
    assert [record.lm_loss for record in run.meter.logger.records] == [pytest.approx(4.9), None]


def test_an_iteration_that_is_passed_over_has_no_line_of_its_own_batch_and_rate(training):
    run = training(
        "train.train_iters=null", "train.train_samples=24", "train.rampup_batch_size=[2, 2, 12]",
        "train.iterations_to_skip=[5]", "logging.log_interval=9",
    )  # fmt: skip
    run.run()
    (record,) = run.meter.logger.records
    assert (record.iteration, record.global_batch_size, record.learning_rate) == (5, 6, 8)


def test_no_periodic_checkpoint_is_written_before_a_step_since_the_latest(training):
    run = training("train.train_iters=8", "checkpoint.save_interval=2", "train.iterations_to_skip=[1-2, 5-7]")
    run.run()
    assert run.saving.folder.iterations() == [4, 8]


def test_reading_what_is_passed_over_is_no_waiting_for_data(training):
    timers, run = None, training("train.train_iters=3", "train.iterations_to_skip=[2-3]", "logging.log_interval=9")
    timers = run.meter.timers
    taken, take = [], timers.take

    def read():
        while True:
            with timers.phase("data"):
                pass
            yield None

    run.batches.following = read()
    timers._clock = iter(range(1000)).__next__
    timers.take = lambda: taken.append(take()) or taken[-1]
    run.run()
    assert [seconds["data"] for seconds in taken] == [0]  # a fake step reads none


def test_the_clock_of_the_steps_stands_still_while_replicas_are_compared(training):
    run, order = training("train.train_iters=3", "logging.log_interval=9", "evaluation.interval=0"), []
    replicas = SimpleNamespace(
        is_due=lambda iteration: iteration == 2, compare=lambda at: order.append(f"compare {at}")
    )
    for name in ("wait", "pause", "resume"):
        call = getattr(run.meter.interval, name)
        setattr(run.meter.interval, name, lambda name=name, call=call: (order.append(name), call()))
    run = replace(run, saving=None, replicas=replicas)
    run.run()
    at = order.index("compare 2")
    assert order[at - 2 : at + 2] == ["wait", "pause", "compare 2", "resume"]


@pytest.mark.parametrize(("scale", "ends"), [(1.0, True), (2.0, False)], ids=["smallest", "not the smallest"])
def test_fp16_fails_if_every_step_overflows_at_the_smallest_scale(training, scale, ends):
    engine = FakeEngine(skips=range(2, 100))
    engine.loss_scale = scale
    run = replace(training("train.train_iters=60", "precision.dtype=fp16", engine=engine), saving=None)
    if ends:
        with pytest.raises(TrainingError, match=r"the last 59 iterations up to 60 overflowed .* scale, 1\.\nLower"):
            run.run()
    else:
        assert run.run() == ""


def test_a_step_that_is_skipped_without_a_loss_scale_ends_the_training(training):
    run = training("train.train_iters=4", "logging.log_interval=2", engine=FakeEngine(skips={2}))
    with pytest.raises(TrainingError, match="gradients or weights are not finite within"):
        run.run()
