"""A checkpoint is written beside the steps; errors come at a step, and a crash leaves the earlier checkpoint."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from pretrain.checkpoint import background
from pretrain.checkpoint.background import BackgroundSaves
from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.cpu.backend import CpuBackend
from pretrain.engine import groups
from pretrain.errors import CheckpointError

TRAINS_WHILE_IT_WRITES_FOR_HOURS = """
import sys, time
from pathlib import Path
import torch.distributed as dist
from pretrain.checkpoint.folder import CheckpointFolder
from pretrain.checkpoint.background import BackgroundSaves

class Slow:
    def __init__(self, directory):
        self.directory = directory

    def write(self, group):
        (self.directory / "part").write_text("half of it")
        print("writing", flush=True)
        time.sleep(6000)

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
saves = BackgroundSaves(CheckpointFolder(Path(sys.argv[1])), is_main=True, notify=print, timeout_minutes=1)
saves.start(20, Slow)
while True:
    saves.poll()
    time.sleep(0.01)
"""


class Written:
    """A checkpoint of one file; `go` lets it be written."""

    def __init__(self, text="complete", error=None, *, at_once=True):
        self.text, self.error = text, error
        self.go = threading.Event()
        if at_once:
            self.go.set()

    def __call__(self, directory):
        self.directory = directory
        return self

    def write(self, group):
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        (self.directory / "weights").write_text(self.text)


@pytest.fixture(autouse=True)
def alone():
    """A process group of one."""
    groups.join_world(CpuBackend(), 0, 1, timeout_minutes=1)
    yield
    groups.leave()


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints")


@pytest.fixture
def told():
    """What the user was told."""
    return []


@pytest.fixture
def saves(folder, told):
    return BackgroundSaves(folder, is_main=True, notify=told.append, timeout_minutes=1)


def until_told(saves, told):
    """Poll as a training does after its steps, until the user is told of a complete checkpoint, or an error comes."""
    before = len(told)
    while len(told) == before:
        saves.poll()
    return told[-1]


def content(folder):
    return (folder.directory(folder.latest()) / "weights").read_text()


def test_it_is_written_while_the_training_goes_on_and_the_user_is_told_when_it_is_complete(saves, folder, told):
    slow = Written(at_once=False)
    saves.start(20, slow)
    saves.poll()
    assert (folder.latest(), folder.iterations(), told) == (None, [], [])
    slow.go.set()
    line = until_told(saves, told)
    assert line.startswith(f"checkpoint: {folder.directory(20)}, complete ")
    assert (folder.latest(), content(folder)) == (20, "complete")
    saves.poll()
    assert told == [line]


def test_an_error_comes_at_a_step_and_leaves_the_earlier_one(saves, folder, told):
    saves.start(10, Written("first"))
    until_told(saves, told)
    saves.start(20, Written(error=CheckpointError("no room")))
    with pytest.raises(CheckpointError, match="no room"):
        until_told(saves, told)
    assert (folder.latest(), folder.iterations(), content(folder)) == (10, [10], "first")
    saves.wait()
    saves.start(30, Written("third"))
    until_told(saves, told)
    assert (folder.latest(), content(folder)) == (30, "third")


def test_a_folder_that_cannot_be_renamed_is_an_error_at_a_step(saves, folder, told):
    saves.start(10, slow := Written(at_once=False))
    (folder.path / LATEST).mkdir()
    slow.go.set()
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be written: .*\nSet checkpoint.save"):
        until_told(saves, told)


def test_an_error_of_the_program_is_not_lost(saves, told):
    saves.start(10, Written(error=KeyError("weights")))
    with pytest.raises(KeyError, match="weights"):
        until_told(saves, told)


def test_an_error_of_the_program_while_it_is_renamed_is_told_to_the_other_ranks(saves, told, monkeypatch):
    of_all = []
    monkeypatch.setattr(background, "first_of", lambda problem, group: (of_all.append(problem), problem)[1])
    monkeypatch.setattr(CheckpointFolder, "publish", lambda *_: {}["weights"])
    saves.start(10, Written())
    with pytest.raises(KeyError, match="weights"):
        until_told(saves, told)
    assert of_all == ["'weights'"]


def test_a_second_one_waits_for_the_first_and_says_so_once_a_run(folder):
    told, writing = [], []

    def tell(line):
        told.append(line)
        writing[-1].go.set()  # only now may the first one end

    saves = BackgroundSaves(folder, is_main=True, notify=tell, timeout_minutes=1)
    for iteration in (10, 20, 30, 40):
        slow = Written(f"{iteration}", at_once=False)
        saves.start(iteration, slow)
        writing.append(slow)
        if iteration > 10:
            threading.Timer(0.1, slow.go.set).start()
    saves.wait()
    first, *rest = told
    assert first == (
        "the checkpoint of iteration 20 waits until that of iteration 10 is written; "
        "with a longer checkpoint.save_interval it would not have to wait"
    )
    assert [line.split(", complete")[0] for line in rest] == [
        f"checkpoint: {folder.directory(iteration)}" for iteration in (10, 20, 30, 40)
    ]
    assert (folder.iterations(), content(folder)) == ([10, 20, 30, 40], "40")


def test_the_error_of_the_first_one_comes_before_the_second_one_is_begun(saves, folder):
    saves.start(10, Written(error=CheckpointError("no room")))
    with pytest.raises(CheckpointError, match="no room"):
        saves.start(20, Written())
    assert not (folder.path / ".unfinished-0000020").exists()


def test_older_ones_are_removed_after_the_new_one_is_complete(tmp_path, told):
    folder = CheckpointFolder(tmp_path, keep=2)
    saves = BackgroundSaves(folder, is_main=True, notify=told.append, timeout_minutes=1)
    for iteration in (10, 20):
        saves.start(iteration, Written())
        saves.wait()
    saves.start(30, slow := Written(at_once=False))
    assert folder.iterations() == [10, 20]
    slow.go.set()
    saves.wait()
    assert (folder.iterations(), folder.latest()) == ([20, 30], 30)


@pytest.mark.parametrize("error", [None, CheckpointError("no room")], ids=["complete", "failed"])
def test_a_run_that_ends_with_an_error_waits_and_reports(saves, folder, told, error):
    saves.start(10, slow := Written(error=error, at_once=False))
    threading.Timer(0.2, slow.go.set).start()
    saves.finish()
    if error is None:
        assert told[0].startswith(f"checkpoint: {folder.directory(10)}, complete ")
        assert folder.latest() == 10
    else:
        assert told == ["the checkpoint of iteration 10 is not complete: no room"]
    saves.finish()
    assert len(told) == 1


def test_without_a_save_nothing_is_waited_for(saves, told):
    saves.poll()
    saves.wait()
    saves.finish()
    assert told == []


@pytest.mark.full  # tests/training/test_async_save.py kills a run on every commit
@pytest.mark.usefixtures("forked_python")
def test_a_process_killed_while_it_trains_and_writes_leaves_the_earlier_one(saves, folder, told):
    saves.start(10, Written("first"))
    saves.wait()
    command = [sys.executable, "-c", TRAINS_WHILE_IT_WRITES_FOR_HOURS, str(folder.path)]
    training = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert training.stdout.readline() == b"writing\n"
    training.send_signal(signal.SIGKILL)
    training.communicate()
    assert (folder.latest(), folder.iterations(), content(folder)) == (10, [10], "first")
    assert (folder.path / ".unfinished-0000020" / "part").exists()
    saves.start(30, Written("third"))
    saves.wait()
    assert (folder.latest(), content(folder)) == (30, "third")
    assert sorted(path.name for path in folder.path.iterdir()) == ["iter_0000010", "iter_0000030", LATEST]
