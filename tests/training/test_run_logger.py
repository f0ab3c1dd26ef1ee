"""Rank 0 tells console, metrics.jsonl and TensorBoard; the other ranks are silent."""

from __future__ import annotations

import json

import pytest

from observe.conftest import train_record
from pretrain.observe.records import EvalRecord
from pretrain.training.run_logger import Journal
from pretrain.training.progress import Progress

__all__ = ["train_record"]


@pytest.fixture
def journal(make, tmp_path):
    """Open a journal of the run in `tmp_path`."""

    def open_journal(rank=0, progress=None, *, resumed=False, overrides=()):
        return Journal(
            make(*overrides),
            tmp_path,
            rank=rank,
            total_iterations=100,
            progress=progress or Progress(),
            resumed=resumed,
        )

    return open_journal


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_rank_0_tells_everything(journal, tmp_path, train_record, capsys):
    with journal() as told:
        told.train(train_record(10))
        told.evaluation(EvalRecord.of("valid", 10, 2.0), consumed_samples=80)
        told.note("a remark")
    assert [line["kind"] for line in lines(tmp_path)] == ["train", "eval"]
    printed = "".join(capsys.readouterr())
    assert "a remark" in printed
    assert any((tmp_path / "tensorboard").iterdir())


def test_other_ranks_are_silent(journal, tmp_path, train_record, capfd):
    with journal(rank=1) as told:
        told.train(train_record(10))
        told.evaluation(EvalRecord.of("valid", 10, 2.0), consumed_samples=80)
        told.timers({}, 10)
        told.note("a remark")
    assert list(tmp_path.iterdir()) == []
    assert "".join(capfd.readouterr()) == ""


def test_tensorboard_may_be_switched_off(journal, tmp_path):
    with journal(overrides=["logging.tensorboard=false"]):
        pass
    assert not (tmp_path / "tensorboard").exists()


def test_a_resumed_run_drops_what_it_will_do_again(journal, tmp_path, train_record):
    with journal() as told:
        told.train(train_record(10))
        told.evaluation(EvalRecord.of("valid", 20, 2.0), consumed_samples=800)
    with journal(progress=Progress(iteration=10), resumed=True):
        pass
    assert [line["iteration"] for line in lines(tmp_path)] == [10]


def test_a_finished_run_that_is_started_again_writes_its_evaluations_once(journal, tmp_path):
    for attempt in range(3):
        with journal(progress=Progress(iteration=100 * bool(attempt)), resumed=bool(attempt)) as told:
            for split in ("valid", "test"):
                told.evaluation(EvalRecord.of(split, 100, 2.0), consumed_samples=800)
    assert [(line["split"], line["iteration"]) for line in lines(tmp_path)] == [("valid", 100), ("test", 100)]


def test_closing_twice_is_no_error(journal):
    told = journal()
    told.close()
    told.close()
