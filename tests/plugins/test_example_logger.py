"""The logger of docs/writing-a-logger.md follows a training, a rollback and a resume."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.trained import call, settings, write_recipe
from pretrain.errors import RunError
from pretrain.plugins.logger import Run
from pretrain.recipe import make_recipe
from pretrain.report.loggers.choice import loggers_of
from pretrain.report.metrics import EventRecord
from pretrain.training.progress import Progress
from pretrain.training.reporting import run_output
from pretrain.training.reporting.run_output import RunLogger
from pretrain.training.stopping import Stopping
from recipe.smallest import SMALLEST
from report.conftest import train_record

__all__ = ["train_record"]

EXAMPLE = Path(__file__).parents[2] / "docs" / "example-logger"


@pytest.fixture(autouse=True)
def installed(site):
    site.project(EXAMPLE)


def recipe_of(*overrides):
    return make_recipe(SMALLEST, ["logging.loggers=[csv]", *overrides])


def test_a_rollback_and_a_resume_drop_later_lines(tmp_path, train_record, capsys):
    setup = SimpleNamespace(recipe=recipe_of(), world=SimpleNamespace(rank=0))
    with RunLogger(setup, tmp_path, 40, Progress(), resumed=False) as logger:
        for iteration in (10, 20):
            logger.train(train_record(iteration))
        logger.go_back(Progress(iteration=10))
        logger.event(EventRecord(event="rollback", iteration=10, text="back to iteration 10"))
        logger.train(train_record(20, lm_loss=1.0))
    with RunLogger(setup, tmp_path, 40, Progress(iteration=10), resumed=True) as logger:
        logger.train(train_record(20, lm_loss=2.0))
    lines = (tmp_path / "curves.csv").read_text().splitlines()
    assert lines[0] == "iteration,curve,value"
    assert [line for line in lines if ",lm loss," in line] == ["10,lm loss,4.25", "20,lm loss,2.0"]
    assert "10,rollback,back to iteration 10" in lines
    assert "10,resume,resumed after iteration 10" in lines
    assert "warning" not in "".join(capsys.readouterr())


def test_a_logger_that_is_added_at_a_resume_begins_its_file_and_goes_back_over_any_text(tmp_path, train_record, capsys):
    setup = SimpleNamespace(recipe=recipe_of(), world=SimpleNamespace(rank=0))
    with RunLogger(setup, tmp_path, 40, Progress(iteration=10), resumed=True) as logger:
        logger.event(EventRecord(event="straggler", iteration=10, text="rank 3 is slow:\n, by 2 s"))
        logger.train(train_record(20))
        logger.go_back(Progress(iteration=10))
    assert (tmp_path / "curves.csv").read_text().splitlines() == [
        "iteration,curve,value",
        "10,resume,resumed after iteration 10",
        '10,straggler,"rank 3 is slow: , by 2 s"',
    ]
    assert "warning" not in "".join(capsys.readouterr())


def test_its_options_are_its_own(tmp_path):
    run = Run(directory=tmp_path, note=pytest.fail)
    (logger,) = loggers_of(recipe_of("logging.logger_options={csv: {fil: a.csv}}"), run).values()
    with pytest.raises(RunError, match=r"csv has no fil\.\nAllowed: file"):
        logger.check()


def noted(order, function):
    """Let a function note its name when it is called."""
    return lambda *given, **named: (order.append(function.__qualname__), function(*given, **named))[1]


def test_a_training_writes_its_curves_and_ends_its_loggers_before_ranks_leave(tmp_path, monkeypatch):
    recipe, run_dir, order = write_recipe(tmp_path), tmp_path / "run", []
    monkeypatch.setattr(run_output, "finish_loggers", noted(order, run_output.finish_loggers))
    monkeypatch.setattr(Stopping, "__exit__", noted(order, Stopping.__exit__))
    options = settings("logging={loggers: [csv], log_interval: 1, logger_options: {csv: {file: all.csv}}}")
    assert call("run", recipe, "--run-dir", run_dir, *options) == 0
    lines = (run_dir / "all.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines if ",lm loss," in line] == ["1", "2", "3"]
    assert sum(",lm loss validation," in line for line in lines) == 1
    assert order == ["finish", "Stopping.__exit__"]  # a launcher may end all ranks with the first that leaves
