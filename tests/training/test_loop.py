"""The loop: what happens after which iteration. Engine, data and outputs are made up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pretrain.errors import TrainingError
from pretrain.report.hang.position import END
from pretrain.report.metrics import EvalRecord
from pretrain.training import events
from pretrain.training.events import Checkpoints, verdict
from pretrain.training.progress import Progress
from pretrain.training.safeguards.replicas import ReplicaCheck
from pretrain.training.saving import Saving
from training.made_up_training import FakeEngine

pytestmark = pytest.mark.usefixtures("alone")


def test_logs_evaluations_and_checkpoints_come_at_their_intervals_and_at_the_end(training):
    run = training(
        "train.train_iters=5", "logging.log_interval=2", "evaluation.interval=3", "checkpoint.save_interval=4"
    )
    assert run.run() == ""
    assert run.meter.logger.events == [
        "train 2", "valid 3", "train 4", "checkpoint 4", "train 5", "checkpoint 5", "valid 5", "test 5",
    ]  # fmt: skip


def test_after_its_last_iteration_a_training_is_at_its_end(training):
    """The report of a long run takes longer than a step may."""
    run = training("train.train_iters=2")
    run.run()
    assert run.meter.timers.position.activity == END


def test_records_and_checkpoints_of_the_last_iteration_are_written_once(training):
    run = training(
        "train.train_iters=4", "logging.log_interval=2", "evaluation.interval=2", "checkpoint.save_interval=2"
    )
    run.run()
    assert run.meter.logger.events == [
        "train 2", "checkpoint 2", "valid 2", "train 4", "checkpoint 4", "valid 4", "test 4",
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
    assert record.metrics["lm_loss"] == pytest.approx(4.65)  # of iterations 3 and 4
    assert (record.iteration, record.consumed_samples, record.consumed_tokens) == (4, 32, 32 * 32)
    expected = {"global_batch_size": 8, "learning_rate": 24, "grad_norm": 1.5, "params_norm": 7.0}
    expected |= {"memory_peak_bytes": 123, "loss_scale": None}
    assert expected.items() <= record.metrics.items()


def test_a_reason_to_stop_is_followed_by_a_record_and_a_checkpoint_but_no_evaluation(training):
    run = training("train.train_iters=9", "logging.log_interval=5", "evaluation.interval=3", said=["", "", "SIGTERM"])
    assert run.run() == "SIGTERM"
    assert run.meter.logger.events == ["train 3", "checkpoint 3"]


def test_a_reason_that_comes_with_the_last_iteration_leaves_nothing_out(training):
    run = training("train.train_iters=2", said=["", "SIGTERM"])
    assert run.run() == ""
    assert run.meter.logger.events[-2:] == ["valid 2", "test 2"]


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
    assert run.meter.logger.events == ["valid 4", "test 4"]


def test_a_run_that_was_killed_between_a_checkpoint_and_its_evaluation_begins_with_that(training):
    overrides = ("train.train_iters=4", "evaluation.interval=2", "logging.log_interval=9")
    run = training(*overrides, progress=Progress(iteration=2, consumed_samples=16), is_pending=True)
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
    assert run.meter.logger.events[-2:] == ["valid 4", "test 4"]


def test_garbage_is_collected_after_steps_evaluations_and_checkpoints(training):
    overrides = ("train.train_iters=2", "evaluation.interval=1", "checkpoint.save_interval=1", "logging.log_interval=9")
    run = training(*overrides)
    events = run.meter.logger.events
    run.garbage.after_iteration = lambda due: events.append(f"after {due.iteration}")
    run.garbage.collect = lambda: events.append("collect")
    run.run()
    assert events == [
        "checkpoint 1", "collect", "valid 1", "collect", "after 1", "train 2", "after 2",
        "checkpoint 2", "collect", "valid 2", "collect", "test 2", "collect",
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
    assert record.metrics["lm_loss"] == pytest.approx(4.8)
    assert {"skipped_iterations": 1, "loss_scale": 1024.0}.items() <= record.metrics.items()
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


def test_weights_that_break_between_a_line_and_the_checkpoint_after_it_are_told_without_a_number(training):
    run = training("train.train_iters=9", "logging.log_interval=2", "checkpoint.save_interval=2")
    run.engine.parameters_norm = lambda: torch.tensor(torch.nan)
    with pytest.raises(TrainingError, match=r"are not finite after iteration 2\. There is no checkpoint\."):
        run.run()


def test_fp16_continues_with_a_smaller_scale(training):
    run = training(
        "train.train_iters=2",
        "logging.log_interval=1",
        "precision.dtype=fp16",
        engine=FakeEngine(breaks_at=2, skips={2}),
    )
    assert run.without(Saving, Checkpoints).run() == ""
    assert [record.metrics["lm_loss"] for record in run.meter.logger.records] == [pytest.approx(4.9), None]


class Replicas(ReplicaCheck):
    """A check that records its comparisons."""

    def __init__(self, run, order):
        super().__init__(run, None, every=2, saving=None)
        self.order = order

    def compare(self, iteration):
        self.order.append(f"compare {iteration}")


def test_the_clock_of_the_steps_stands_still_while_replicas_are_compared(training):
    run, order = training("train.train_iters=3", "logging.log_interval=9", "evaluation.interval=0"), []
    for name in ("wait", "pause", "resume"):
        call = getattr(run.meter.interval, name)
        setattr(run.meter.interval, name, lambda name=name, call=call: (order.append(name), call()))
    replace(run, events=(Replicas(run, order), *run.without(Saving, Checkpoints).events)).run()
    at = order.index("compare 2")
    assert order[at - 2 : at + 2] == ["wait", "pause", "compare 2", "resume"]
    assert [event for event in order if event.startswith("compare")] == ["compare 2"]


def test_the_prompt_is_continued_at_the_end_alone(training, monkeypatch):
    monkeypatch.setattr(events, "continue_prompt", lambda *_arguments: "def main")
    for said, told in (((), ["the model continues def main"]), (["SIGTERM"], [])):
        run = training("train.train_iters=2", "evaluation.prompt=def", said=said)
        replace(run, events=(*run.events, events.Continuation(run, None))).run()
        assert [event for event in run.meter.logger.events if event.startswith("the model")] == told


@pytest.mark.parametrize(("scale", "ends"), [(1.0, True), (2.0, False)], ids=["smallest", "not the smallest"])
def test_fp16_fails_if_every_step_overflows_at_the_smallest_scale(training, scale, ends):
    engine = FakeEngine(skips=range(2, 100))
    engine.loss_scale = scale
    run = training("train.train_iters=60", "precision.dtype=fp16", engine=engine).without(Saving, Checkpoints)
    if ends:
        with pytest.raises(TrainingError, match=r"the last 59 iterations up to 60 overflowed .* scale, 1\.\nLower"):
            run.run()
    else:
        assert run.run() == ""


def test_a_step_that_is_skipped_without_a_loss_scale_ends_the_training(training):
    run = training("train.train_iters=4", "logging.log_interval=2", engine=FakeEngine(skips={2}))
    with pytest.raises(TrainingError, match="gradients or weights are not finite within"):
        run.run()
