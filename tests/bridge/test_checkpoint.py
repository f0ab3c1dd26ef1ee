"""A checkpoint is written by the training process itself, and an error of the writer ends the save."""

from __future__ import annotations

import multiprocessing
import queue
from functools import partial

import pytest

from engine import tiny
from pretrain.bridge.megatron.checkpoint import _write_all
from pretrain.checkpoint import storage
from pretrain.errors import CheckpointError


def write_bucket(failing, transforms, number, bucket, results, pending, use_fsync):
    """Stand in for megatron-core's writer of one file."""
    assert pending.get_nowait() == number
    results.put((number, OSError("no space left on device") if number in failing else [f"wrote {bucket}"]))


def outcome(failing):
    results = queue.Queue()
    _write_all(partial(write_bucket, failing), [], False, 0, ["a", "b"], results)
    return results.get_nowait()


def test_results_of_written_buckets_are_reported():
    assert outcome(failing=()) == {0: ["wrote a"], 1: ["wrote b"]}


def test_an_error_is_reported_instead_of_the_rest():
    assert str(outcome(failing={0})) == "no space left on device"
    assert isinstance(outcome(failing={1}), OSError)


def test_a_file_that_cannot_be_written_ends_the_save(tmp_path):
    with tiny.engine_of(tiny.tiny("model.num_layers=1")) as engine:
        (tmp_path / "saved" / "__0_0.distcp").mkdir(parents=True)
        with pytest.raises(CheckpointError, match=r"saved cannot be written: .*Is a directory"):
            storage.save(engine, tmp_path / "saved", {})
        assert multiprocessing.active_children() == []
