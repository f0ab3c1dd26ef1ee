"""A crash at any moment leaves a usable checkpoint; old ones are removed; errors list the contents."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.errors import CheckpointError, DamageError

WRITES_FOR_EVER = """
import sys, time
from pathlib import Path
from pretrain.checkpoint.folder import CheckpointFolder

def write(directory):
    (directory / "part").write_text("half of it")
    print("writing", flush=True)
    time.sleep(600)

CheckpointFolder(Path(sys.argv[1])).save(20, write, is_main=True, barrier=lambda: None)
"""


class CrashError(Exception):
    """A crash of the machine."""


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints")


def write(text="complete"):
    """Return what fills a folder with two files."""

    def fill(directory):
        (directory / "weights").write_text(text)
        (directory / "metadata").write_text(text)

    return fill


def save(folder, iteration, text="complete"):
    return folder.save(iteration, write(text), is_main=True, barrier=lambda: None)


def content(folder):
    """Return what the latest checkpoint holds."""
    directory = folder.directory(folder.latest())
    return {path.name: path.read_text() for path in directory.iterdir()}


def whole(text):
    return {"weights": text, "metadata": text}


def test_a_checkpoint_is_found_again(folder):
    assert folder.latest() is None
    assert save(folder, 20) == str(folder.path / "iter_0000020")
    assert (folder.path / LATEST).read_text().splitlines()[0] == "20"
    assert folder.latest() == 20
    assert content(folder) == whole("complete")


def test_an_error_while_writing_leaves_the_previous_one(folder):
    save(folder, 10, "first")

    def fail(directory):
        (directory / "weights").write_text("half")
        raise CrashError

    with pytest.raises(CrashError):
        folder.save(20, fail, is_main=True, barrier=lambda: None)
    assert (folder.latest(), folder.iterations(), content(folder)) == (10, [10], whole("first"))
    save(folder, 20, "second")
    assert content(folder) == whole("second")


def test_a_process_killed_while_writing_leaves_the_previous_one(folder):
    save(folder, 10, "first")
    writer = subprocess.Popen([sys.executable, "-c", WRITES_FOR_EVER, folder.path], stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"writing\n"
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert (folder.latest(), folder.iterations(), content(folder)) == (10, [10], whole("first"))
    save(folder, 30)
    assert sorted(path.name for path in folder.path.iterdir()) == ["iter_0000010", "iter_0000030", LATEST]


@pytest.fixture
def crash_at(monkeypatch):
    """Crash instead of the n-th change of the disk, counted from 0."""

    def crash_at(number):
        count = iter(range(1000))

        def crashing(change):
            def instead(*args, **kwargs):
                if next(count) == number:
                    raise CrashError
                return change(*args, **kwargs)

            return instead

        for name in ("mkdir", "write_text", "rename", "replace"):
            monkeypatch.setattr(Path, name, crashing(getattr(Path, name)))
        monkeypatch.setattr(shutil, "rmtree", crashing(shutil.rmtree))
        monkeypatch.setattr(os, "fsync", crashing(os.fsync))

    yield crash_at
    monkeypatch.undo()


@pytest.mark.parametrize("iteration", [30, 20], ids=["new", "written before"])
def test_a_crash_at_any_moment_leaves_a_usable_one(tmp_path, crash_at, monkeypatch, iteration):
    for number in range(100):
        folder = CheckpointFolder(tmp_path / str(number), keep=2)
        save(folder, 20, "previous branch")
        save(folder, 10, "previous")  # a run that was started again from an older checkpoint
        crash_at(number)
        try:
            save(folder, iteration, "new")
        except CrashError:
            crashed = True
        else:
            crashed = False
        monkeypatch.undo()
        assert (folder.latest(), content(folder)) in [(10, whole("previous")), (iteration, whole("new"))]
        assert all(len(list(folder.directory(there).iterdir())) == 2 for there in folder.iterations())
        save(folder, 40, "after")
        assert (folder.latest(), content(folder)) == (40, whole("after"))
        assert not list(folder.path.glob(".*"))
        if not crashed:
            break
    assert not crashed
    assert number > 8


def test_everything_is_on_the_disk_before_latest_names_it(folder, monkeypatch):
    events = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    replace = Path.replace
    monkeypatch.setattr(
        Path, "replace", lambda self, target: (events.append(Path(target).name), replace(self, target))[1]
    )
    save(folder, 20)
    before = [Path(event).name for event in events[: events.index(LATEST)]]
    assert {"weights", "metadata", ".unfinished-0000020"} <= set(before)
    assert any(name.startswith(f".{LATEST}.") for name in before)


def test_a_temporary_file_of_a_killed_process_is_removed(folder):
    left = folder.path / f".{LATEST}.host.1.partial"
    folder.path.mkdir(exist_ok=True)
    left.write_text("20\n")
    save(folder, 20)
    assert not left.exists()


def test_a_checkpoint_is_written_again_in_its_place(folder):
    save(folder, 20, "first")
    save(folder, 20, "second")
    assert (folder.iterations(), content(folder)) == ([20], whole("second"))


@pytest.mark.parametrize(("keep", "left"), [(None, [10, 20, 30, 40]), (1, [40]), (2, [30, 40]), (9, [10, 20, 30, 40])])
def test_the_configured_number_is_kept(tmp_path, keep, left):
    folder = CheckpointFolder(tmp_path, keep)
    for iteration in (10, 20, 30, 40):
        save(folder, iteration)
    assert folder.iterations() == left


def test_later_ones_of_an_abandoned_part_do_not_count(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for iteration in (40, 10, 20, 30):  # started again from before 10
        save(folder, iteration)
    assert (folder.iterations(), folder.latest()) == ([20, 30, 40], 30)


def test_nothing_is_removed_before_the_new_one_is_complete(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=1)
    save(folder, 10)
    folder.save(
        20, lambda directory: (write()(directory), folder.directory(10).stat()), is_main=True, barrier=lambda: None
    )
    assert folder.iterations() == [20]


def test_other_ranks_write_and_touch_nothing_else(folder):
    save(folder, 10)
    (folder.path / ".unfinished-0000020").mkdir()  # by the main rank
    calls = []
    folder.save(20, write(), is_main=False, barrier=lambda: calls.append(folder.latest()))
    assert calls == [10, 10, 10]
    assert folder.iterations() == [10]
    assert (folder.path / ".unfinished-0000020" / "weights").is_file()


def test_all_ranks_wait_for_the_folder_the_files_and_the_name(folder):
    seen = []

    def barrier():
        seen.append((sorted(path.name for path in folder.path.rglob("*")), folder.latest()))

    folder.save(20, write(), is_main=True, barrier=barrier)
    assert seen == [
        ([".unfinished-0000020"], None),
        ([".unfinished-0000020", "metadata", "weights"], None),
        (["iter_0000020", LATEST, "metadata", "weights"], 20),
    ]


def test_other_files_are_left_alone(folder):
    folder.path.mkdir()
    for name in ("notes.txt", "iter_best", "iter_0000099"):
        (folder.path / name).write_text("mine")
    save(folder, 20)
    assert folder.iterations() == [20]
    assert (folder.path / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be written: .*\nSet checkpoint\.save to another"):
        save(CheckpointFolder(tmp_path / "file"), 20)


@pytest.mark.parametrize("text", ["10", "10\n"])
def test_a_user_chooses_another_by_its_number(folder, text):
    save(folder, 10)
    save(folder, 20)
    (folder.path / LATEST).write_text(text)
    assert folder.latest() == 10


def test_every_flipped_bit_of_the_latest_file_is_an_error(folder):
    """Else 10 might become 20, which is there."""
    for iteration in (10, 20, 11, 30):
        save(folder, iteration)
    written = bytearray((folder.path / LATEST).read_bytes())
    for bit in range(8 * len(written)):
        flipped = bytearray(written)
        flipped[bit // 8] ^= 1 << bit % 8
        (folder.path / LATEST).write_bytes(flipped)
        with pytest.raises(DamageError, match=f"{LATEST} is damaged"):
            folder.latest()


@pytest.mark.parametrize("text", ["", "release", "-3", "1.5", "20 30", "\N{SUPERSCRIPT TWO}"])
def test_a_latest_file_without_an_iteration_is_an_error(folder, text):
    save(folder, 10)
    save(folder, 20)
    (folder.path / LATEST).write_text(text)
    with pytest.raises(CheckpointError, match=r"not an iteration\.\nWrite one of .*: 10, 20\."):
        folder.latest()


def test_a_latest_file_that_names_a_missing_folder_is_an_error(folder):
    save(folder, 10)
    save(folder, 20)
    shutil.rmtree(folder.directory(20))
    with pytest.raises(CheckpointError, match=r"names iteration 20, whose folder is missing\.\nWrite .*: 10\."):
        folder.latest()


def test_a_folder_that_cannot_be_written_is_found_before_the_training(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(CheckpointError, match="cannot be written"):
        CheckpointFolder(tmp_path / "file" / "checkpoints").require_writable()


def test_asking_whether_a_folder_can_be_written_leaves_nothing_in_it(tmp_path):
    CheckpointFolder(tmp_path / "new").require_writable()
    assert list((tmp_path / "new").iterdir()) == []
