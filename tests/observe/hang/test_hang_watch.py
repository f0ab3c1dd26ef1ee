"""The watch over a rank's main thread: it ends a rank that hangs, whatever the disk does, and no other one."""

import errno
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pretrain.observe.hang import hang_watch, position
from pretrain.observe.hang.gathering import REPORT
from pretrain.observe.hang.hang_limit import HangLimit
from pretrain.observe.hang.hang_watch import HangWatch, Watched
from pretrain.observe.hang.position import Position
from pretrain.observe.hang.process_state import RankProcess

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Rank:
    """A rank of one, under watch, that does not really end."""

    def __init__(self, folder, given=0.2):
        self.position, self.folder = Position(), folder
        self.position.iteration, self.position.activity = 5, "optimizer"
        self.told, self.left = [], threading.Event()
        self.watch = HangWatch(
            Watched(
                position=self.position,
                limit=HangLimit(given, 600),
                rank=0,
                layers=4,
                processes={0: RankProcess.own(0)},
                folder=folder,
                recent=list,
                tell_launcher=lambda text, _is_cause: self.told.append(text),
            )
        )

    def move(self):
        self.position.enter(self.position.activity)

    def waits_for(self, path):
        """Say whether the file appears, while the rank moves."""
        deadline = time.monotonic() + 10
        while not path.exists() and time.monotonic() < deadline:
            self.move()
            time.sleep(0.01)
        return path.exists()


@pytest.fixture
def rank(tmp_path, monkeypatch):
    made = Rank(tmp_path / "hang" / "now")

    def leave():
        made.left.set()
        raise SystemExit  # ends the thread instead of the process

    monkeypatch.setattr(hang_watch, "_leave", leave)
    monkeypatch.setattr(hang_watch, "_leave_after", lambda _seconds: None)
    return made


def test_a_rank_that_does_not_move_ends_with_a_report(rank):
    with rank.watch:
        assert rank.left.wait(10)
    assert rank.told[0].startswith("The run hangs: rank 0 has not moved")
    assert (rank.folder / REPORT).exists()


def test_a_rank_that_moves_answers_another_one_that_hangs(rank):
    """Nothing tells it apart from one whose Python does not run, if it does not."""
    rank.folder.mkdir(parents=True)
    with rank.watch:
        assert rank.waits_for(rank.folder / "answer-0.json")
        assert not rank.left.is_set()


def test_a_rank_without_a_limit_answers_a_signal_to_another_one(tmp_path):
    rank = Rank(tmp_path / "now", given=0)
    rank.watch._questions._period = 0.02
    asked = tmp_path / "now-asked-1"
    asked.mkdir()
    with rank.watch:
        assert rank.waits_for(asked / "answer-0.json")
        assert rank.watch._questions.answered_within(10)


def test_a_rank_at_its_end_answers_and_ends_by_itself(rank):
    """It writes a checkpoint perhaps, while others hang; and its own error is still to be shown."""
    rank.position.enter(position.END)
    rank.folder.mkdir(parents=True)
    with rank.watch:
        deadline = time.monotonic() + 10
        while not (rank.folder / "answer-0.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not rank.left.wait(0.4)
    assert (rank.folder / "answer-0.json").exists()


def test_a_disk_that_fails_for_a_moment_does_not_end_the_watch(rank, monkeypatch):
    real, failed = Path.exists, []

    def stale_once(path):
        if path == rank.folder and not failed:
            failed.append(path)
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path)

    monkeypatch.setattr(Path, "exists", stale_once)
    rank.folder.mkdir(parents=True)
    with rank.watch:
        assert rank.waits_for(rank.folder / "answer-0.json")
    assert failed


def test_a_disk_that_hangs_does_not_keep_the_rank(rank, monkeypatch):
    back = threading.Event()
    monkeypatch.setattr(Path, "exists", lambda _path: back.wait(20))
    monkeypatch.setattr(Path, "mkdir", lambda *_a, **_k: back.wait(20))
    rank.watch._longest = 0.1
    with rank.watch:
        assert rank.left.wait(10)
    back.set()
    assert "no word from the other ranks: the disk of " in rank.told[0]
    assert "test_hang_watch.py" in rank.told[0], "its own stack"


@pytest.mark.parametrize(("late", "hangs"), [([0.1] * 99, True), ([0.1, 3600.0, 0.1, 0.1], False)])
def test_a_run_that_was_stopped_as_a_whole_does_not_hang(tmp_path, monkeypatch, late, hangs):
    """SIGSTOP and SIGCONT, `docker pause`: then the watch stood still too."""
    rank, now, ended = Rank(tmp_path / "now", given=1.0), [100.0], []
    rest = iter(late)

    def wait(_seconds):
        now[0] += (step := next(rest, 0.0))
        return False if step and not ended else None

    monkeypatch.setattr(hang_watch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(rank.watch, "_requests", SimpleNamespace(wait=wait))
    monkeypatch.setattr(rank.watch, "_end", ended.append)
    rank.watch._watch()
    assert bool(ended) == hangs


def test_a_consequence_is_told_to_a_launcher_alone(rank, capsys):
    """Under torchrun or srun every rank would print that it has ended with the others."""
    object.__setattr__(rank.watch._watched, "tell_launcher", None)
    rank.watch._tell("consequence", is_cause=False)
    rank.watch._tell("cause")
    assert capsys.readouterr().err == "cause\n"
