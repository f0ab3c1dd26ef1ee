"""A target is complete or not there; what was interrupted goes on."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pretrain.checkpoint import checksums
from pretrain.checkpoint.checksums import digest_of
from pretrain.errors import CheckpointError
from pretrain.tools.convert.target import Target, write_target

TESTS = Path(__file__).parents[2]


class File:
    """A file of one byte, whose writing may fail."""

    nbytes = 1

    def __init__(self, name, fail=lambda: None):
        self.name, self._fail = name, fail
        self.times = 0

    def write(self, path, written):
        self.times += 1
        path.write_bytes(b"x")
        self._fail()
        written(1)
        return {"digest": digest_of(b"x"), "size": 1, "of": self.name}


def content(folder):
    """Return the files' content, but for the checksums."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != checksums.FILE]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_a_target_has_all_its_files_and_no_others(tmp_path):
    results = {}
    target = Target(
        files=[File("a"), File("in/b")],
        small={"in/config.json": b"{}"},
        finish=lambda folder, written: results.update(written) or (folder / "index").write_text("i"),
    )
    counts = []
    write_target(target, tmp_path / "new" / "target", "identity", written=counts.append)
    assert content(tmp_path / "new" / "target") == {"a": "x", "in/b": "x", "in/config.json": "{}", "index": "i"}
    assert {name: each["of"] for name, each in results.items()} == {"a": "a", "in/b": "in/b"}
    assert set(checksums.read(tmp_path / "new" / "target")) == {"a", "in/b", "in/config.json", "index"}
    assert checksums.damage_in_share(tmp_path / "new" / "target") is None
    assert sum(counts) == 2
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["target"]


def full_after_a(tmp_path):
    """Return what fails as soon as file `a` is noted as written."""

    def fail():
        while '"a"' not in (tmp_path / "target.unfinished" / ".written.json").read_text():
            time.sleep(0.001)
        raise OSError(errno.ENOSPC, "No space left on device")

    return fail


def test_a_full_disk_is_told_and_the_same_call_goes_on(tmp_path):
    first = File("a")
    with pytest.raises(CheckpointError, match=r"no room on the disk .*\nRepeat the command to continue from "):
        write_target(Target(files=[first, File("b", full_after_a(tmp_path))]), tmp_path / "target", "identity")
    assert not (tmp_path / "target").exists()
    again, counts = File("a"), []
    write_target(Target(files=[again, File("b")]), tmp_path / "target", "identity", written=counts.append)
    assert (first.times, again.times, sum(counts)) == (1, 0, 2)
    assert content(tmp_path / "target") == {"a": "x", "b": "x"}


def test_another_conversion_starts_anew(tmp_path):
    with pytest.raises(CheckpointError):
        write_target(Target(files=[File("a"), File("b", full_after_a(tmp_path))]), tmp_path / "target", "one")
    other = File("a")
    write_target(Target(files=[other]), tmp_path / "target", "another")
    assert other.times == 1
    assert content(tmp_path / "target") == {"a": "x"}


def write_until_killed(folder):
    """Write files to folder/target, and kill this process as soon as one of them is noted as written."""
    journal = Path(folder, "target.unfinished", ".written.json")

    def kill():
        if '"a"' in journal.read_text():
            os.kill(os.getpid(), signal.SIGKILL)

    killing = [File(f"b{number}", kill) for number in range(100)]  # several are written at once
    write_target(Target(files=[File("a"), *killing]), Path(folder, "target"), "identity")


@pytest.mark.usefixtures("forked_python")
def test_a_killed_process_leaves_no_target_and_what_it_wrote(tmp_path):
    """In a process of its own: a fork of this one, which has threads, may crash before it is killed."""
    module = "tools.convert.test_target"
    program = f"import sys\nfrom {module} import write_until_killed as run\nrun(sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "target").exists()
    again = File("a")
    write_target(Target(files=[again, File("b")]), tmp_path / "target", "identity")
    written = content(tmp_path / "target")
    assert (again.times, written["a"], written["b"]) == (0, "x", "x")


def test_a_target_that_exists_is_replaced_only_by_force(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "old").touch()
    with pytest.raises(CheckpointError, match=r"exists already.\nPass --force to replace it"):
        write_target(Target(files=[File("a")]), tmp_path / "target", "identity")
    write_target(Target(files=[File("a")]), tmp_path / "target", "identity", force=True)
    assert content(tmp_path / "target") == {"a": "x"}
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_folders_that_no_conversion_has_made_are_left_alone(tmp_path):
    for name in ("target.unfinished", "target.replaced"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    with pytest.raises(CheckpointError, match=r"target\.unfinished exists and is not an unfinished conversion"):
        write_target(Target(files=[File("a")]), tmp_path / "target", "identity")
    (tmp_path / "target.unfinished").rename(tmp_path / "other")
    write_target(Target(files=[File("a")]), tmp_path / "target", "identity")
    write_target(Target(files=[File("a")]), tmp_path / "target", "identity", force=True)
    assert content(tmp_path) == {"target/a": "x", "target.replaced/mine": "", "other/mine": ""}


def test_a_link_is_replaced_and_not_what_it_leads_to(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").touch()
    (tmp_path / "target").symlink_to(tmp_path / "there")
    write_target(Target(files=[File("a")]), tmp_path / "target", "identity", force=True)
    assert content(tmp_path) == {"target/a": "x", "there/mine": ""}
    assert not (tmp_path / "target").is_symlink()


def test_a_target_that_another_process_writes_is_left_alone(tmp_path):
    (tmp_path / "target.unfinished").mkdir()
    descriptor = os.open(tmp_path / "target.unfinished", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(CheckpointError, match="is being written by another process"):
        write_target(Target(files=[File("a")]), tmp_path / "target", "identity")
    os.close(descriptor)


def test_too_little_room_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 10, 0))
    file = File("a")
    with pytest.raises(CheckpointError, match=r"no room on the disk \(1.05 MB are needed and 0 B free\)"):
        write_target(Target(files=[file]), tmp_path / "target", "identity")
    assert file.times == 0


def test_the_error_of_one_file_ends_the_others(tmp_path):
    def damaged():
        raise CheckpointError("the source is damaged")

    files = [File(str(number), damaged) for number in range(50)]
    with pytest.raises(CheckpointError, match="the source is damaged"):
        write_target(Target(files=files), tmp_path / "target", "identity")
    assert sum(file.times for file in files) < 50
