"""The folder of a launcher ends with it, at the latest when the next one starts."""

import signal
import subprocess
import sys
import tempfile

import pytest

from pretrain.launch.processes.children import RankFolder


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Have a folder for temporary files of this test alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_it_is_removed(temporary):
    folder = RankFolder()
    (folder.path / "0.json").touch()
    folder.remove()
    assert list(temporary.iterdir()) == []


def test_that_of_a_launcher_which_runs_is_left_alone(temporary):
    first, second = RankFolder(), RankFolder()
    assert set(temporary.iterdir()) == {first.path, second.path}
    first.remove()
    second.remove()


def test_that_of_a_killed_launcher_is_removed_by_the_next(temporary):
    code = (
        "import os; from pretrain.launch.processes.children import RankFolder;"
        f"folder = RankFolder(); (folder.path / '0.json').touch(); os.kill(os.getpid(), {signal.SIGKILL:d})"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    (left,) = temporary.iterdir()
    folder = RankFolder()
    assert list(temporary.iterdir()) == [folder.path]
    assert left != folder.path
    folder.remove()


def test_what_else_has_such_a_name_stays(temporary):
    other = temporary / "pretrain-ranks-of-somebody"
    other.mkdir()
    RankFolder().remove()
    assert list(temporary.iterdir()) == [other]
