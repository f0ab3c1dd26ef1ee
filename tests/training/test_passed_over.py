"""Iterations whose batches are left out: what comes after which."""

from __future__ import annotations

from itertools import pairwise

import pytest

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
    run.garbage.after = lambda iteration: seen.append((position.iteration, position.beats))
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
    assert notes[0] == "iteration 4/6 | the batches since the last line were left out"


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
