import json
import subprocess
import sys
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import RunError
from pretrain.report.metrics import EvalRecord, EventRecord, MetricsWriter, TaskRecord, read_metrics
from report.conftest import room_for


def write(path, records, **options):
    with closing(MetricsWriter(path, **options)) as writer:
        for record in records:
            writer.write(record)


def test_records_are_read_back_in_order(tmp_path, train_record):
    records = [train_record(10), EvalRecord.of("valid", 10, 4.0), train_record(20)]
    write(tmp_path / "metrics.jsonl", records)
    assert read_metrics(tmp_path / "metrics.jsonl") == [record.to_json() for record in records]


def test_every_line_is_plain_json(tmp_path, train_record):
    write(tmp_path / "metrics.jsonl", [train_record(lm_loss=float("nan"), grad_norm=float("-inf"))])

    def refuse(constant):
        raise AssertionError(constant)

    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=refuse)["grad_norm"] is None


def test_a_record_outlives_kill_9_right_after_it_was_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    program = (
        "import os, sys; from pathlib import Path; from pretrain.report.metrics import MetricsWriter;"
        "from pretrain.report.metrics import EvalRecord;"
        "MetricsWriter(Path(sys.argv[1])).write(EvalRecord.of('valid', 7, 1.0)); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program, path], check=False).returncode == -9
    assert [line["iteration"] for line in read_metrics(path)] == [7]


@pytest.mark.parametrize("room", [0, 10])
def test_a_record_for_which_there_is_no_room_leaves_nothing_of_it(tmp_path, train_record, room):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsWriter(path)) as writer:
        writer.write(train_record(10))
        with room_for(path, room), pytest.raises(OSError, match=r"space|large"):
            writer.write(train_record(20))
        writer.write(train_record(30))
    assert [line["iteration"] for line in read_metrics(path)] == [10, 30]


@given(cut=st.integers(min_value=0))
def test_a_file_torn_anywhere_is_read_and_continued(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("torn") / "metrics.jsonl"
    write(path, [EvalRecord.of("valid", iteration, 1.0) for iteration in (1, 2, 3)])
    whole = path.read_bytes()
    left = whole[: cut % (len(whole) + 1)]
    path.write_bytes(left)
    complete = left.count(b"\n")
    assert len(read_metrics(path)) == complete
    write(path, [EvalRecord.of("valid", 9, 1.0)])
    assert [line["iteration"] for line in read_metrics(path)] == [*[1, 2, 3][:complete], 9]


def test_a_resumed_run_reads_as_one(tmp_path, train_record):
    path = tmp_path / "metrics.jsonl"
    write(path, [train_record(10), train_record(20), EvalRecord.of("valid", 20, 4.0), train_record(30)])
    write(path, [train_record(25), train_record(30)], resume_at=20)
    assert [line["iteration"] for line in read_metrics(path)] == [10, 20, 20, 25, 30]


def test_resuming_at_the_beginning_drops_everything(tmp_path, train_record):
    path = tmp_path / "metrics.jsonl"
    write(path, [train_record(10)])
    write(path, [], resume_at=0)
    assert read_metrics(path) == []


def test_a_line_that_is_broken_in_the_middle_is_named(tmp_path, train_record):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\n{oops\n{"iteration": 3}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl:2: not a JSON object"):
        read_metrics(path)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(RunError, match=r"metrics\.jsonl: cannot be read \(No such file"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_nothing_is_rewritten_where_nothing_changes(tmp_path, train_record):
    path = tmp_path / "metrics.jsonl"
    write(path, [train_record(10)])
    before = path.stat().st_ino
    write(path, [], resume_at=10)
    assert path.stat().st_ino == before


def test_a_training_that_goes_back_drops_the_later_lines_and_writes_on(tmp_path, train_record):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsWriter(path)) as writer:
        for iteration in (10, 20, 30):
            writer.write(train_record(iteration))
            writer.write(EvalRecord.of("valid", iteration, 4.0))
    with closing(MetricsWriter(path)) as writer:
        writer.go_back(10)
        assert writer.has_evaluation(EvalRecord.of("valid", 10, 5.0).to_json())
        assert not writer.has_evaluation(EvalRecord.of("valid", 20, 4.0).to_json())
        writer.write(train_record(20, lm_loss=1.0))
    assert [(line["kind"], line["iteration"]) for line in read_metrics(path)] == [
        ("train", 10), ("eval", 10), ("train", 20),
    ]  # fmt: skip
    assert read_metrics(path)[-1]["lm_loss"] == 1.0


def test_a_training_that_goes_back_writes_on_where_its_file_was_removed(tmp_path, train_record):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsWriter(path)) as writer:
        writer.write(train_record(10))
        path.unlink()
        writer.go_back(0)
        writer.write(train_record(20))
        path.rename(tmp_path / "moved")
        path.write_text("no record\n\n")
        with pytest.raises(RunError):
            writer.go_back(0)
        writer.write(train_record(30))
    assert [line["iteration"] for line in read_metrics(tmp_path / "moved")] == [20]
    assert json.loads(path.read_bytes().splitlines()[-1])["iteration"] == 30


def rollback(iteration, first, last):
    numbers = {"first_left_out": first, "last_left_out": last}
    return EventRecord(event="rollback", iteration=iteration, text="back", numbers=numbers)


def test_a_rollback_that_the_checkpoint_does_not_know_of_is_dropped_and_comes_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [rollback(10, 11, 15), rollback(20, 21, 25)])
    write(path, [rollback(20, 21, 25)], resume_at=20, left_out=[[11, 15]])
    assert [line["first_left_out"] for line in read_metrics(path)] == [11, 21]


def test_a_training_that_goes_back_once_more_keeps_its_earlier_rollbacks(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsWriter(path)) as writer:
        writer.write(rollback(20, 21, 25))
        writer.go_back(20, [[21, 25], [27, 29]])
        writer.write(rollback(20, 27, 29))
    assert [line["first_left_out"] for line in read_metrics(path)] == [21, 27]


def test_results_of_a_task_are_the_same_evaluation_only_with_the_same_documents_and_examples(tmp_path):
    def task(name="valid", iteration=10, num_fewshot=0, limit=3):
        return TaskRecord(
            iteration=iteration, task=name, num_fewshot=num_fewshot, limit=limit, metrics={"acc,none": 0.5}
        )

    path = tmp_path / "metrics.jsonl"
    write(path, [task()])
    with closing(MetricsWriter(path)) as writer:
        assert writer.has_evaluation(task().to_json())
        others = [
            task(limit=None),
            task(num_fewshot=1),
            task("words"),
            task(iteration=20),
            EvalRecord.of("valid", 10, 4.0),
        ]
        assert [writer.has_evaluation(other.to_json()) for other in others] == [False] * 5
