"""Micro-batches of a training: read by workers that import no more than reading needs."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from pretrain.bridge.megatron import prepare_to_read
from pretrain.data.samples.sequence_pieces import ALONE
from pretrain.engine import groups
from pretrain.training import training_data
from pretrain.training.progress import Progress
from pretrain.training.training_data import Evaluation, RewindableBatches, TrainingData


@pytest.fixture
def made(monkeypatch):
    """The options of the micro-batches that are made."""
    options = []
    monkeypatch.setattr(training_data, "MicroBatches", lambda dataset, **given: options.append(given) or iter(()))
    return options


def test_workers_leave_out_the_compiler(made, monkeypatch):
    monkeypatch.setattr(groups, "data_parallel_rank", lambda: 0)
    monkeypatch.setattr("pretrain.training.training_data.context_rank", lambda: ALONE)
    reading = SimpleNamespace(num_workers=2, reset_attention_mask=False)
    recipe = SimpleNamespace(train=SimpleNamespace(micro_batch_size=1), data=reading)
    setup = SimpleNamespace(recipe=recipe, layout=SimpleNamespace(data_parallel_size=1), pin_memory=False)
    data = SimpleNamespace(setup=setup, engine=SimpleNamespace(reads_data=True))
    TrainingData._batches(data, object(), consumed_samples=0)
    (options,) = made
    assert options["prepare_worker"] is prepare_to_read
    assert options["num_workers"] == 2


@pytest.mark.parametrize("given", ["[3, 5-7]", "3 5-7", "3,5-7", "3, 5-7", '["3", 5-7]'])
def test_they_are_numbered_as_in_the_log(make, given):
    progress = Progress()
    to_skip = make(f"train.iterations_to_skip={given}").train.iterations_to_skip
    batches = RewindableBatches(lambda _: None, progress, to_skip)
    passed = []
    for progress.iteration in range(10):
        passed += [progress.iteration + 1] if batches.skips_next() else []
    assert passed == [3, 5, 6, 7]


def test_stretches_of_rollbacks_are_left_out_too():
    progress = Progress(iteration=9, left_out=[[4, 6], [10, 12]])
    assert RewindableBatches(lambda _: None, progress).skips_next()


@pytest.mark.parametrize("given", ["0", "[7-3]", "[0-3]", "[true]", "[seven]", "[1.5]"])
def test_other_values_are_refused(make, given):
    with pytest.raises(Exception, match="is neither an iteration, from 1, nor a range of them, such as 100-300"):
        make(f"train.iterations_to_skip={given}")


pytestmark = pytest.mark.usefixtures("alone")


def test_an_iteration_that_is_passed_over_has_no_line_of_its_own_batch_and_rate(training):
    run = training(
        "train.train_iters=null", "train.train_samples=24", "train.rampup_batch_size=[2, 2, 12]",
        "train.iterations_to_skip=[5]", "logging.log_interval=9",
    )  # fmt: skip
    run.run()
    (record,) = run.meter.logger.records
    assert record.iteration == 5
    assert {"global_batch_size": 6, "learning_rate": 8}.items() <= record.metrics.items()


def test_no_periodic_checkpoint_is_written_before_a_step_since_the_latest(training):
    run = training("train.train_iters=8", "checkpoint.save_interval=2", "train.iterations_to_skip=[1-2, 5-7]")
    run.run()
    assert run.saving.folder.iterations() == [4, 8]


def test_a_rank_that_reads_no_data_moves_in_each_iteration_that_is_passed_over(training):
    run = training("train.train_iters=9", "train.iterations_to_skip=[3-8]", "evaluation.interval=0")
    run.batches.following = None  # a stage in the middle of a pipeline
    position, seen = run.meter.timers.position, []
    run.garbage.after_iteration = lambda due: seen.append((position.iteration, position.beats))
    run.run()
    iterations, beats = zip(*seen, strict=True)
    assert iterations == tuple(range(1, 10))
    assert all(later > earlier for earlier, later in pairwise(beats))


def test_where_a_line_is_due_and_all_batches_were_left_out_it_is_said(training):
    run = training("train.train_iters=6", "train.iterations_to_skip=[2-4]", "logging.log_interval=2")
    notes, note = [], run.meter.logger.note
    run.meter.logger.note = lambda text: (notes.append(text), note(text))
    run.run()
    assert [record.iteration for record in run.meter.logger.records] == [2, 6]
    assert notes[0] == "iteration 4/6 | every batch since the last line was left out"


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
