"""A snapshot is the state of its moment, whatever the training does before it is written."""

from __future__ import annotations

import gc
import traceback
from functools import partial

import pytest

from checkpoint import full_disk
from checkpoint.comparison import differing
from engine import tiny
from engine.layouts import BF16, BF16_SUMS, FP16, OFFLOAD, STAGE, ZERO1
from pretrain.checkpoint import snapshot, storage
from pretrain.checkpoint.checksums import DigestingFile
from pretrain.checkpoint.snapshot import Snapshot
from pretrain.errors import CheckpointError

SMALL = ("model.num_layers=2", "model.hidden_dropout=0.1")
PROGRESS = {"iteration": 3, "consumed_samples": 24, "skipped_iterations": 0}
ENGINES = {
    "fp32": (),
    "bf16": BF16,
    "fp32 ZeRO-1 of megatron-core": ZERO1,
    "fp16 ZeRO-1 of megatron-core": (*FP16, *ZERO1),
    **{f"stage {number}": stage for number, stage in enumerate(STAGE)},
    "bf16 stage 0": (*BF16_SUMS, *STAGE[0]),
    "stage 2, optimizer in host memory": (*STAGE[2], *OFFLOAD),
}


def take(engine, directory, *, copies=True):
    directory.mkdir()
    return Snapshot.take(engine, directory, PROGRESS, copies=copies)


ON_A_COMMIT = {"bf16", "fp16 ZeRO-1 of megatron-core", "stage 3", "stage 2, optimizer in host memory"}


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(each, id=name, marks=[pytest.mark.full] * (name not in ON_A_COMMIT))
        for name, each in ENGINES.items()
    ],
)
def test_it_equals_bit_for_bit_what_is_written_at_once(overrides, tmp_path):
    with tiny.engine_of(tiny.tiny(*SMALL, *overrides)) as engine:
        tiny.train(engine, 0, 3)
        tiny.save(engine, tmp_path / "at once", 3)
        later = take(engine, tmp_path / "later")
        tiny.train(engine, 3, 5)
        later.write()
    assert differing(tmp_path / "at once", tmp_path / "later") == []


@pytest.mark.full
def test_taking_it_does_not_disturb_the_training_and_a_run_resumes_from_it(tmp_path):
    recipe = tiny.tiny(*SMALL, *ZERO1)
    with tiny.engine_of(recipe) as engine:
        undisturbed = tiny.train(engine, 0, 6)
    with tiny.engine_of(recipe) as engine:
        disturbed = tiny.train(engine, 0, 3)
        later = take(engine, tmp_path / "later")
        disturbed += tiny.train(engine, 3, 6)
        later.write()
    assert disturbed == undisturbed
    with tiny.engine_of(recipe) as engine:
        assert storage.load(engine, tmp_path / "later", weights_only=False).progress == PROGRESS
        assert tiny.train(engine, 3, 6) == undisturbed[3:]


def test_writing_leaves_the_garbage_collector_to_the_training(tmp_path, monkeypatch):
    """megatron-core switches it off while it writes, in a process of its own."""
    seen, write = set(), DigestingFile.write
    monkeypatch.setattr(DigestingFile, "write", lambda *args: (seen.add(gc.isenabled()), write(*args))[1])
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        take(engine, tmp_path / "later").write()
    assert seen == {True}


def test_host_memory_that_is_not_copied_changes_with_the_training(tmp_path):
    """On the CPU a tensor "copied to the host" is the tensor itself."""
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        tiny.train(engine, 0, 3)
        tiny.save(engine, tmp_path / "at once", 3)
        later = take(engine, tmp_path / "later", copies=False)
        tiny.train(engine, 3, 5)
        later.write()
    assert differing(tmp_path / "at once", tmp_path / "later") == ["__0_0.distcp", "__0_1.distcp"]


@pytest.mark.parametrize(
    "fill",
    [full_disk.fill, partial(full_disk.fill, after=0), full_disk.fill_at_the_flush],
    ids=["in a tensor", "at once", "at the flush"],
)
def test_a_full_disk_is_an_error_in_two_lines(fill, tmp_path, monkeypatch):
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        later = take(engine, tmp_path / "later")
        fill(monkeypatch)
        with pytest.raises(CheckpointError) as caught:
            later.write()
    assert str(caught.value) == (
        f"{tmp_path / 'later'} cannot be written: {full_disk.MESSAGE}\n"
        "Free disk space, or set checkpoint.save to another folder."
    )
    inner = [frame for frame, _ in traceback.walk_tb(caught.value.__cause__.__traceback__)][1:]
    assert inner
    assert not any(frame.f_locals for frame in inner), "the error keeps what was being written"


def test_a_disk_without_room_for_the_common_part_is_an_error_too(tmp_path):
    two_lines = pytest.raises(CheckpointError, match=r"later cannot be written: common\.pt: .*\nFree disk space")
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine, full_disk.files_of_at_most(100), two_lines:
        take(engine, tmp_path / "later")


def test_a_folder_that_is_gone_is_an_error_before_anything_is_copied(tmp_path):
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine, pytest.raises(CheckpointError, match="cannot be written"):
        Snapshot.take(engine, tmp_path / "not there", PROGRESS, copies=True)


def test_an_error_of_the_program_stays_itself_and_the_other_ranks_are_told(tmp_path, monkeypatch):
    class Failing:
        def write(self, open_file):
            raise KeyError("key")

    class Written:
        def write(self, open_file):
            return []

    told = []
    monkeypatch.setattr(snapshot, "gathered", lambda share, group: [share])
    monkeypatch.setattr(snapshot, "first_of", lambda problem, group: (told.append(problem), problem)[1])
    with pytest.raises(KeyError, match="key"):
        Snapshot(tmp_path, Failing()).write()
    assert told == [
        f"{tmp_path} is not complete: a rank has failed with KeyError: 'key'\nIts own log has the traceback."
    ]
    monkeypatch.setattr(snapshot, "gathered", lambda share, group: None)  # another rank than the first
    monkeypatch.setattr(snapshot, "first_of", lambda problem, group: told[0])
    with pytest.raises(CheckpointError, match="a rank has failed with KeyError"):
        Snapshot(tmp_path, Written()).write()
