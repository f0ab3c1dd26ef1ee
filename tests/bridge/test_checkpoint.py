"""A checkpoint is written by the training process itself, and an error of the writer ends the save."""

from __future__ import annotations

import inspect
import multiprocessing
import queue
from functools import partial

import pytest
from megatron.core.dist_checkpointing.strategies import filesystem_async

from engine import tiny
from pretrain.bridge.megatron import checkpoint
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


@pytest.mark.parametrize("pinned_memory", [True, False])
def test_the_host_waits_for_copies_where_memory_is_not_page_locked(monkeypatch, pinned_memory):
    asked = []
    writer = filesystem_async.FileSystemWriterAsync
    monkeypatch.setattr(writer, "preload_tensors", staticmethod(inspect.unwrap(writer.preload_tensors)))

    class OnADevice:
        def to(self, device, non_blocking):
            asked.append((device, non_blocking))

    checkpoint.install(pinned_memory=pinned_memory)
    writer.preload_tensors([("file", "key", ([], [("item", OnADevice())]))], True)
    assert asked == [("cpu", pinned_memory)]


def test_a_file_that_cannot_be_written_ends_the_save(tmp_path):
    with tiny.engine_of(tiny.tiny("model.num_layers=1")) as engine:
        (tmp_path / "saved" / "__0_0.distcp").mkdir(parents=True)
        with pytest.raises(CheckpointError, match=r"saved cannot be written: .*Is a directory"):
            storage.save(engine, tmp_path / "saved", {})
        assert multiprocessing.active_children() == []
