import math
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
from tensorboard.summary.writer import event_file_writer

from pretrain.plugins.logger import Point, Run
from pretrain.report.loggers import tensorboard
from pretrain.report.loggers.curves import of_evaluation, of_task, of_timers, of_train
from pretrain.report.loggers.tensorboard import TensorBoard
from pretrain.report.metrics import EvalRecord, TaskRecord


@contextmanager
def board_of(directory, note=pytest.fail, resumed=None):
    board = TensorBoard(Run(directory=directory, note=note, resumed=resumed))
    board.start()
    yield board
    board.finish(failed=False)


def curves(folder):
    """Read what TensorBoard would show: tag -> [(step, value)]."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_scalars_have_megatrons_names(tmp_path, train_record):
    record = train_record(loss_scale=1024.0, mfu=0.5, memory_peak_bytes=7, params_norm=2.0, num_zeros_in_grad=3)
    record.metrics["moe_most_loaded"] = [math.nan, 1.5, 1.25]  # the first layer has no experts
    with board_of(tmp_path) as board:
        board.metrics(of_train(record))
        board.metrics(of_evaluation(EvalRecord.of("valid", 10, 2.0), 80))
        board.metrics(of_evaluation(EvalRecord.of("test", 10, 3.0), 80))
        words = TaskRecord(iteration=10, task="words", num_fewshot=0, limit=None, metrics={"acc,none": 0.5})
        board.metrics(of_task(words, 80))
        numbers = {"exact_match,strict-match": 0.25, "exact_match_stderr,strict-match": 0.1, "f1,none": None}
        board.metrics(of_task(replace(words, task="gsm8k", metrics=numbers), 80))
        board.metrics(of_timers({"forward-backward": (12.5, 14.5)}, 10, 80))
    shown = curves(tmp_path / "tensorboard")
    expected = {
        "lm loss": 4.25,
        "learning-rate": 3e-4,
        "batch-size": 8,
        "grad-norm": 1.5,
        "tasks/words acc": 0.5,
        "tasks/gsm8k exact_match/strict-match": 0.25,
        "loss-scale": 1024,
        "params-norm": 2,
        "num-zeros": 3,
        "moe-most-loaded/layer 2": 1.5,
        "moe-most-loaded/layer 3": 1.25,
        "iteration-time": 0.5,
        "throughput": 7,
        "samples-per-second": 16,
        "tokens-per-second-per-device": 8192,
        "mfu": 0.5,
        "mem-max-allocated-bytes": 7,
        "lm loss validation": 2,
        "lm loss validation ppl": 7.389056,
        "lm loss test": 3,
        "lm loss test ppl": 20.085537,
        "forward-backward-time": 14.5,
    }
    assert {tag: points[0][0] for tag, points in shown.items()} == dict.fromkeys(expected, 10)
    assert {tag: points[0][1] for tag, points in shown.items()} == pytest.approx(expected)
    assert curves(tmp_path / "tensorboard" / "samples")["lm loss vs samples"] == [(80, 4.25)]
    assert curves(tmp_path / "tensorboard" / "samples")["lm loss validation vs samples"] == [(80, 2.0)]


def test_unmeasured_values_are_not_shown(tmp_path, train_record):
    with board_of(tmp_path) as board:
        board.metrics(of_train(train_record(mfu=None, loss_scale=None, lm_loss=None)))
    assert {"mfu", "loss-scale", "lm loss"}.isdisjoint(curves(tmp_path / "tensorboard"))


def test_a_resumed_run_shows_one_curve_over_iterations_and_over_samples(tmp_path, train_record, monkeypatch):
    # Files of one second are read in the order of their number in the process, as text: 8 after 10.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))

    def run(iterations, resumed=None):
        with board_of(tmp_path, resumed=resumed) as board:
            for iteration in iterations:
                board.metrics(of_train(train_record(iteration, consumed_samples=100 * iteration)))

    run([10, 20, 30])
    run([25, 35], Point(iteration=20, consumed_samples=2000))
    assert [step for step, _ in curves(tmp_path / "tensorboard")["lm loss"]] == [10, 20, 25, 35]
    assert [step for step, _ in curves(tmp_path / "tensorboard" / "samples")["lm loss vs samples"]] == [
        1000,
        2000,
        2500,
        3500,
    ]


def test_a_training_that_goes_back_hides_the_later_points(tmp_path, train_record, monkeypatch):
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    with board_of(tmp_path) as board:
        for iteration in (10, 20, 30):
            board.metrics(of_train(train_record(iteration, consumed_samples=8 * iteration)))
        board.go_back(Point(iteration=10, consumed_samples=80))
        board.metrics(of_train(train_record(20, consumed_samples=160, lm_loss=1.0)))
    assert curves(tmp_path / "tensorboard")["lm loss"] == [(10, 4.25), (20, 1.0)]
    assert curves(tmp_path / "tensorboard" / "samples")["lm loss vs samples"] == [(80, 4.25), (160, 1.0)]


def test_a_folder_that_cannot_be_written_any_more_is_told_once_and_has_a_gap(
    tmp_path, train_record, monkeypatch, capfd
):
    monkeypatch.setattr(tensorboard, "_FIRST_WAIT", 0.0)
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    folder, away, told = tmp_path / "tensorboard", tmp_path / "away", []
    with board_of(tmp_path, told.append) as board:
        board.metrics(of_train(train_record(1)))
        folder.rename(away)
        folder.touch()
        iteration, until = 1, time.monotonic() + 60
        while not told and time.monotonic() < until:  # the error of a thread
            iteration += 1
            board.metrics(of_train(train_record(iteration)))
        board.metrics(of_train(train_record(iteration + 1)))
        folder.unlink()
        board.metrics(of_train(train_record(iteration + 2)))
        while not (folder / "samples").is_dir() and time.monotonic() < until:  # whose thread may fail later
            board.metrics(of_train(train_record(iteration + 2)))
    (warning,) = told
    assert f"warning: {folder} cannot be written (" in warning
    assert curves(folder)["lm loss"][-1] == (iteration + 2, 4.25)  # those before, if nothing was written meanwhile
    assert curves(folder / "samples")
    assert "Traceback" not in capfd.readouterr().err


def test_a_folder_that_cannot_be_made_or_is_lost_before_the_end_ends_nothing(tmp_path, train_record):
    told = []
    folders = [tmp_path / name / "tensorboard" for name in ("file", "folder")]
    folders[0].parent.mkdir()
    folders[0].touch()
    with board_of(tmp_path / "file", told.append) as board:
        board.metrics(of_train(train_record(1)))
    with board_of(tmp_path / "folder", told.append) as board:
        folders[1].rename(tmp_path / "away")
        folders[1].touch()
        board.metrics(of_train(train_record(1)))
    assert [text.split(" cannot")[0] for text in told] == [f"warning: {folder}" for folder in folders]
