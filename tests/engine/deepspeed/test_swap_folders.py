"""The folder of a run's files: exclusive, writable, and cleaned up."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time

import pytest
import torch.distributed as dist

from pretrain.engine.deepspeed import swapping
from pretrain.errors import RecipeError

KEY = "engine.zero.offload_param.nvme_path"


@pytest.fixture(autouse=True)
def _world_of_one(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    yield
    swapping.release()


def refused(path, rank=0):
    with pytest.raises(RecipeError) as caught:
        swapping.claim({KEY: str(path)}, rank)
    return str(caught.value).splitlines()


def left_behind(path, rank, *names):
    """Write a file of a rank as DeepSpeed names it."""
    for name in names or ("optimizer", "bfloat16params"):
        files = path / "zero_stage_3" / name / f"rank{rank}"
        files.mkdir(parents=True)
        (files / "0_24.tensor.swp").touch()


def test_the_files_of_this_rank_are_removed_at_the_end(tmp_path):
    swapping.claim({KEY: str(tmp_path)}, 0)
    left_behind(tmp_path, 0)
    swapping.release()
    assert list(tmp_path.iterdir()) == []
    swapping.release()


def test_other_ranks_files_stay(tmp_path):
    left_behind(tmp_path, 1)
    left_behind(tmp_path, 10)
    swapping.claim({KEY: str(tmp_path)}, 0)
    swapping.release()
    assert len(list(tmp_path.glob("zero_stage_3/*/rank1*/*"))) == 4


def test_files_of_a_killed_run_are_removed(tmp_path):
    left_behind(tmp_path, 0, "optimizer", "float16params")
    swapping.claim({KEY: str(tmp_path)}, 0)
    assert list(tmp_path.glob("zero_stage_3/*/rank0")) == []


def test_weights_and_state_may_share_a_folder_or_not(tmp_path):
    (tmp_path / "other").mkdir()
    for second in (tmp_path, tmp_path / "other"):
        swapping.claim({KEY: str(tmp_path), "engine.zero.offload_optimizer.nvme_path": str(second)}, 0)
        left_behind(tmp_path, 0, "optimizer")
        swapping.release()
        assert list(tmp_path.glob("**/zero_stage_3")) == []


def test_the_next_training_of_this_process_takes_the_folder_over(tmp_path):
    swapping.claim({KEY: str(tmp_path)}, 0)
    left_behind(tmp_path, 0)
    swapping.claim({KEY: str(tmp_path)}, 0)
    assert list(tmp_path.glob("zero_stage_3/*/rank0")) == []


def _hold(path, rank, held):
    dist.get_world_size = lambda: 1
    swapping.claim({KEY: path}, rank)
    held.set()
    time.sleep(60)


@pytest.fixture
def holder(tmp_path):
    """Another process that has the folder, as rank 0 of its own run."""
    processes = multiprocessing.get_context("fork")
    held = processes.Event()
    process = processes.Process(target=_hold, args=(str(tmp_path), 0, held), daemon=True)
    process.start()
    assert held.wait(60)
    yield process
    process.kill()  # not an event: it would wait forever for a process that was killed while it waited for it
    process.join()


def test_a_folder_in_which_another_run_is_at_work_is_refused(tmp_path, holder):
    left_behind(tmp_path, 0)
    assert refused(tmp_path) == [
        f"{KEY}: {tmp_path} is in use by another run.",
        "Wait until it ends, or give this run another folder.",
    ]
    assert len(list(tmp_path.glob("zero_stage_3/*/rank0/*"))) == 2
    swapping.claim({KEY: str(tmp_path)}, 1)  # ranks of one run share it


def test_a_killed_run_does_not_block_others(tmp_path, holder):
    holder.kill()
    holder.join()
    swapping.claim({KEY: str(tmp_path)}, 0)


def test_a_missing_folder_is_refused(tmp_path):
    assert refused(tmp_path / "nvme") == [
        f"{KEY}: {tmp_path}/nvme is not a folder on this machine.",
        "Make it, or give another one.",
    ]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "zero_stage_3").touch()
    assert refused(tmp_path) == [
        f"{KEY}: {tmp_path} cannot be written: File exists.",
        "Give a folder on a local disk, in which this user may write.",
    ]


def test_a_file_system_without_direct_io_is_refused(tmp_path, monkeypatch):
    open_ = os.open

    def without_direct(path, flags, *mode):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return open_(path, flags, *mode)

    monkeypatch.setattr(os, "open", without_direct)
    assert refused(tmp_path)[0] == f"{KEY}: {tmp_path} is on a file system without direct I/O."


def test_no_folder_is_held_after_an_error(tmp_path):
    paths = {KEY: str(tmp_path), "engine.zero.offload_optimizer.nvme_path": str(tmp_path / "absent")}
    with pytest.raises(RecipeError, match="absent is not a folder on this machine"):
        swapping.claim(paths, 0)
    assert list(tmp_path.iterdir()) == []
