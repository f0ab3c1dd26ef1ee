"""Rank 0 writes to console, metrics.jsonl and TensorBoard; the other ranks write nothing."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace

import pytest

from plugins.fake_site import site
from pretrain.errors import RunError
from pretrain.report.loggers import background
from pretrain.report.metrics import EvalRecord, EventRecord
from pretrain.training.progress import Progress
from pretrain.training.reporting.run_output import RunLogger
from report.conftest import room_for, train_record

__all__ = ["site", "train_record"]


ACME = """
import threading
from pretrain.plugins.logger import Logger

ends, finished = threading.Event(), []

class Acme(Logger):
    def finish(self, *, failed):
        ends.wait(60)
        finished.append(failed)

@hookimpl
def pretrain_logger(recipe, run):
    return Acme()
"""


@pytest.fixture
def acme(site):
    """Install a logger that does not finish until `ends` is set; return its module."""
    site.install("acme", "1.0", "pretrain.loggers", acme=site.module("acme_logger", ACME))
    return importlib.import_module("acme_logger")


@pytest.fixture
def logger(make, tmp_path):
    """Open the logger of the run in `tmp_path`."""

    def open_logger(rank=0, progress=None, *, resumed=False, overrides=()):
        setup = SimpleNamespace(recipe=make(*overrides), world=SimpleNamespace(rank=rank))
        return RunLogger(setup, tmp_path, 100, progress or Progress(), resumed=resumed)

    return open_logger


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_rank_0_writes_to_every_output(logger, tmp_path, train_record, capsys):
    with logger() as opened:
        opened.train(train_record(10))
        opened.evaluation(EvalRecord.of("valid", 10, 2.0), consumed_samples=80)
        opened.note("a remark")
    assert [line["kind"] for line in lines(tmp_path)] == ["train", "eval"]
    printed = "".join(capsys.readouterr())
    assert "a remark" in printed
    assert any((tmp_path / "tensorboard").iterdir())


def test_a_training_that_goes_back_drops_its_later_lines_and_says_why(logger, tmp_path, train_record, capsys):
    with logger() as opened:
        opened.train(train_record(10))
        opened.train(train_record(20))
        opened.go_back(Progress(iteration=10, consumed_samples=80))
        opened.event(EventRecord(event="rollback", iteration=10, text="back to iteration 10"))
    assert [(line["kind"], line["iteration"]) for line in lines(tmp_path)] == [("train", 10), ("event", 10)]
    assert "back to iteration 10\n" in capsys.readouterr().out


def test_other_ranks_log_nothing(logger, tmp_path, train_record, capfd):
    with logger(rank=1) as opened:
        opened.train(train_record(10))
        opened.evaluation(EvalRecord.of("valid", 10, 2.0), consumed_samples=80)
        opened.timers({}, 10, 80)
        opened.note("a remark")
        opened.go_back(Progress())
        opened.event(EventRecord(event="straggler", iteration=10, text="slow"))
    assert list(tmp_path.iterdir()) == []
    assert "".join(capfd.readouterr()) == ""


def test_tensorboard_may_be_switched_off(logger, tmp_path):
    with logger(overrides=["logging.tensorboard=false"]):
        pass
    assert not (tmp_path / "tensorboard").exists()


def test_a_resumed_run_drops_records_of_later_iterations(logger, tmp_path, train_record):
    with logger() as opened:
        opened.train(train_record(10))
        opened.evaluation(EvalRecord.of("valid", 20, 2.0), consumed_samples=800)
    with logger(progress=Progress(iteration=10), resumed=True):
        pass
    assert [line["iteration"] for line in lines(tmp_path)] == [10]


def test_a_finished_run_that_is_started_again_writes_its_evaluations_once(logger, tmp_path):
    for attempt in range(3):
        with logger(progress=Progress(iteration=100 * bool(attempt)), resumed=bool(attempt)) as opened:
            for split in ("valid", "test"):
                opened.evaluation(EvalRecord.of(split, 100, 2.0), consumed_samples=800)
    assert [(line["split"], line["iteration"]) for line in lines(tmp_path)] == [("valid", 100), ("test", 100)]


def test_closing_twice_is_allowed_and_waits_once_for_a_logger_that_hangs(logger, acme, monkeypatch, capsys):
    monkeypatch.setattr(background, "FINISH_SECONDS", 0.01)
    opened = logger(overrides=["logging.loggers=[acme]"])
    opened.close()
    monkeypatch.setattr(background, "FAILED_SECONDS", 1e9)
    opened.close(failed=True)
    assert capsys.readouterr().out.count("warning: logger acme: it does not finish") == 1
    acme.ends.set()


def test_loggers_that_have_started_finish_where_another_cannot_start(logger, acme, site, tmp_path):
    source = """
    from pretrain.plugins.logger import Logger

    class Broken(Logger):
        def start(self):
            raise OSError("no route")

    @hookimpl
    def pretrain_logger(recipe, run):
        return Broken()
    """
    site.install("broken", "1.0", "pretrain.loggers", broken=site.module("broken_logger", source))
    acme.ends.set()
    with pytest.raises(RunError, match=r"logging.loggers: broken cannot start: no route"):
        logger(overrides=["logging.loggers=[acme,broken]"])
    assert acme.finished == [True]  # as failed
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_full_disk_is_told_once_and_takes_lines_alone(logger, tmp_path, train_record, capsys):
    with logger(overrides=["logging.tensorboard=false"]) as opened:
        opened.train(train_record(10))
        with room_for(tmp_path / "metrics.jsonl", 5):
            opened.train(train_record(20))
            opened.evaluation(EvalRecord.of("valid", 20, 2.0), consumed_samples=160)
        opened.train(train_record(30))
    assert [line["iteration"] for line in lines(tmp_path)] == [10, 30]
    said = capsys.readouterr().out
    assert said.count("warning: metrics.jsonl cannot be written (") == 1
    assert "iteration 20/100" in said


def test_a_full_disk_at_a_rollback_is_told_and_its_lines_come_once_more(logger, tmp_path, train_record, capsys):
    file = tmp_path / "metrics.jsonl"
    with logger(overrides=["logging.tensorboard=false"]) as opened:
        opened.train(train_record(10))
        opened.train(train_record(20))
        with room_for(file, -file.stat().st_size):
            opened.go_back(Progress(iteration=10, consumed_samples=80))
        opened.train(train_record(20))
    assert [line["iteration"] for line in lines(tmp_path)] == [10, 20, 20]
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "warning" in line)
    assert said.startswith(f"warning: {file} cannot be written: ")
    assert said.endswith(" Its lines after iteration 10 stay, and will be there twice. The training continues.")
