"""The watch over a rank's main thread: it ends a rank that hangs, whatever the disk does, and no other one."""

import errno
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pretrain.report.hang import hang_watch, position
from pretrain.report.hang.gathering import REPORT
from pretrain.report.hang.hang_watch import HangLimit, HangWatch, Watched
from pretrain.report.hang.position import Position
from pretrain.report.hang.rank_state import RankProcess
from report.hang.ranks import called, processes, state

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Rank:
    """A rank under watch, of one as a rule, that does not really end."""

    def __init__(self, folder, given=0.2, ranks=1):
        self.position, self.folder = Position(), folder
        self.position.iteration, self.position.activity = 5, "optimizer"
        self.told, self.causes, self.left = [], [], threading.Event()
        self.watch = HangWatch(
            Watched(
                position=self.position,
                limit=HangLimit(given, 600),
                rank=0,
                layers=4,
                processes={**processes(ranks), 0: RankProcess.own(0)},
                folder=folder,
                recent=list,
                tell_launcher=self.tell,
            )
        )

    def tell(self, text, is_cause):
        self.told.append(text)
        self.causes.append(is_cause)

    def move(self):
        self.position.enter(self.position.activity)

    def waits_for(self, path):
        """Say whether the file appears, while the rank moves."""
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            self.move()
            time.sleep(0.01)
        return path.exists()


@pytest.fixture
def moving(rank):
    """One that does not hang, although on a busy machine it may stand still for seconds."""
    rank.watch._quiet_long = 60.0
    return rank


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
        assert rank.left.wait(60)
    assert rank.told[0].startswith("The run hangs: rank 0 has not moved")
    assert (rank.folder / REPORT).exists()


def test_a_rank_that_moves_answers_another_one_that_hangs(moving):
    """Nothing tells it apart from one whose Python does not run, if it does not."""
    moving.folder.mkdir(parents=True)
    with moving.watch:
        assert moving.waits_for(moving.folder / "answer-0.json")
        assert not moving.left.is_set()


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
        deadline = time.monotonic() + 60
        while not (rank.folder / "answer-0.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not rank.left.wait(0.4)
    assert (rank.folder / "answer-0.json").exists()


def test_a_disk_that_fails_for_a_moment_does_not_end_the_watch(moving, monkeypatch):
    real, failed = Path.exists, []

    def stale_once(path):
        if path == moving.folder and not failed:
            failed.append(path)
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path)

    monkeypatch.setattr(Path, "exists", stale_once)
    moving.folder.mkdir(parents=True)
    with moving.watch:
        assert moving.waits_for(moving.folder / "answer-0.json")
    assert failed


def test_a_disk_that_hangs_does_not_keep_the_rank(rank, monkeypatch):
    back = threading.Event()
    monkeypatch.setattr(Path, "exists", lambda _path: back.wait(120))
    monkeypatch.setattr(Path, "mkdir", lambda *_a, **_k: back.wait(120))
    rank.watch._longest = 0.1
    with rank.watch:
        assert rank.left.wait(60)
    back.set()
    assert "no answer from the other ranks: the disk of " in rank.told[0]
    assert "test_hang_watch.py" in rank.told[0], "its own stack"


class Clock:
    """The time of a watch whose rank does not move, and which takes turns until the rank hangs; 100 at first."""

    def __init__(self, watch, monkeypatch):
        self.now, self.set_by, self.watch = 100.0, 0.0, watch
        self.hung_after = self.hung_at = None
        time_of_day = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now + self.set_by)
        monkeypatch.setattr(hang_watch, "time", time_of_day)
        monkeypatch.setattr(watch, "_end", self.hang)

    def hang(self, seconds):
        self.hung_after, self.hung_at = seconds, self.now

    def pass_by(self, *steps, monkeypatch):
        rest = iter(steps)

        def wait(_seconds):
            self.now += (step := next(rest, 0.0))
            return False if step and self.hung_after is None else None

        monkeypatch.setattr(self.watch, "_requests", SimpleNamespace(wait=wait))
        self.watch._watch()
        return self.hung_after


@pytest.mark.parametrize(("late", "hangs"), [([0.1] * 99, True), ([0.1, 3600.0, 0.1, 0.1], False)])
def test_a_run_that_was_stopped_as_a_whole_does_not_hang(tmp_path, monkeypatch, late, hangs):
    """SIGSTOP and SIGCONT, `docker pause`: then the watch stood still too."""
    clock = Clock(Rank(tmp_path / "now", given=1.0).watch, monkeypatch)
    assert bool(clock.pass_by(*late, monkeypatch=monkeypatch)) == hangs


def test_without_a_number_a_rank_hangs_after_a_minute_where_steps_take_a_moment(tmp_path, monkeypatch):
    rank = Rank(tmp_path / "now", given=None)
    for iteration in range(3):
        with rank.position.step(iteration):
            pass
    clock = Clock(rank.watch, monkeypatch)
    assert clock.pass_by(*[1.0] * 99, monkeypatch=monkeypatch) == pytest.approx(61, abs=1)


def test_a_rank_that_stands_still_joins_another_one_that_hangs_before_its_own_limit(tmp_path, monkeypatch):
    rank = Rank(tmp_path / "now", given=None)
    rank.position.enter("save")
    monkeypatch.setattr(rank.watch, "_questions", SimpleNamespace(asks_of_hang=True))
    clock = Clock(rank.watch, monkeypatch)
    assert clock.pass_by(*[1.0] * 9, monkeypatch=monkeypatch) == pytest.approx(2, abs=1)


@pytest.mark.parametrize("set_by", [0.0, 3600.0, -3600.0])
def test_a_rank_hangs_by_the_time_that_it_waits_not_by_that_of_the_work_before(tmp_path, monkeypatch, set_by):
    """It has written a checkpoint for 900 s, of a timeout of 600; and somebody sets the time of day meanwhile."""
    rank, looks = Rank(tmp_path / "now", given=None), []
    rank.position.enter("save")
    clock = Clock(rank.watch, monkeypatch)

    def look(_seconds):
        looks.append(clock.now)
        return SimpleNamespace(waits_in=called(called=1000.0) if clock.now >= 1000 else None)

    monkeypatch.setattr(rank.watch, "_look", look)
    assert clock.pass_by(*[1.0] * 950, monkeypatch=monkeypatch) is None
    clock.set_by = set_by
    assert clock.pass_by(*[1.0] * 999, monkeypatch=monkeypatch) == pytest.approx(900 + 580, abs=6)
    assert len(looks) < 250, "each reads the whole flight recorder"


@pytest.mark.parametrize(("group", "hangs"), [(position.TASKS, False), ("default_pg", True)])
def test_a_rank_that_waits_for_lm_eval_on_another_one_does_not_hang(tmp_path, monkeypatch, group, hangs):
    seconds = hung_after(tmp_path / "now", monkeypatch, *[1.0] * 999, called_at=101.0, group=group)
    assert (seconds is not None) == hangs


def hung_after(folder, monkeypatch, *steps, called_at, ranks=1, **collective):
    """Return the seconds after its call that a rank counts as hanging; None if it does not in all these steps."""
    rank = Rank(folder, given=None, ranks=ranks)
    rank.position.enter("save")
    clock = Clock(rank.watch, monkeypatch)
    waits_in = called(called=called_at, **collective)
    monkeypatch.setattr(
        rank.watch, "_look", lambda _s: SimpleNamespace(waits_in=waits_in if clock.now >= called_at else None)
    )
    clock.pass_by(*steps, monkeypatch=monkeypatch)
    return None if clock.hung_at is None else clock.hung_at - called_at


@pytest.mark.parametrize(
    ("work", "wait", "hangs_after"),
    [
        pytest.param([1.0] * 100 + [3600.0], [1.0] * 999, 580, id="before it waits"),
        pytest.param([], [1.0] * 100 + [3600.0] + [1.0] * 999, 580 + 3600, id="while it waits"),
    ],
)
def test_a_rank_that_waits_hangs_by_its_time_without_that_for_which_it_was_stopped(
    tmp_path, monkeypatch, work, wait, hangs_after
):
    """The limit of a wait is 580 s; `docker pause` takes an hour."""
    called_at = 100.0 + 1 + sum(work)
    seconds = hung_after(tmp_path / "now", monkeypatch, 1.0, *work, *wait, called_at=called_at)
    assert seconds == pytest.approx(hangs_after, abs=3)


@pytest.mark.parametrize("moment", [0.0, 0.5, 1.01, 1.99])
def test_the_report_of_a_thousand_ranks_comes_before_the_timeout_of_the_collective(tmp_path, monkeypatch, moment):
    """A device's is called a moment after the last movement: the first look comes a moment before the limit."""
    reading = 3.0  # of a thousand states
    seconds = hung_after(tmp_path / "now", monkeypatch, *[1.0] * 999, called_at=101.0 + moment, ranks=1000)
    patience = Rank(tmp_path / "other", given=None, ranks=1000).watch._patience
    assert seconds + patience + reading < 600


def test_a_rank_that_ends_with_the_report_of_another_one_tells_a_consequence_some_time_after_it(rank, monkeypatch):
    """The other one's failure must reach the launchers of all nodes first."""
    slept = []
    monkeypatch.setattr(hang_watch.time, "sleep", lambda seconds, real=time.sleep: (slept.append(seconds), real(0.01)))
    rank.folder.mkdir(parents=True)
    (rank.folder / REPORT).touch()
    with rank.watch:
        assert rank.left.wait(60)
    assert rank.told == [f"It ended because the run hangs: see {rank.folder / REPORT}"]
    assert rank.causes == [False]
    assert 1.5 in slept


def test_a_consequence_is_told_to_a_launcher_alone(rank, monkeypatch, capsys):
    """Under torchrun or srun every rank would print that it has ended with the others."""
    monkeypatch.setattr(hang_watch, "_AFTER_REPORT", 0.0)
    object.__setattr__(rank.watch._watched, "tell_launcher", None)
    rank.folder.mkdir(parents=True)
    (rank.folder / REPORT).touch()
    with rank.watch:
        assert rank.left.wait(60)
    assert capsys.readouterr().err == ""


def test_without_a_launcher_the_report_is_printed(rank, capsys):
    object.__setattr__(rank.watch._watched, "tell_launcher", None)
    with rank.watch:
        assert rank.left.wait(60)
    assert capsys.readouterr().err.startswith("The run hangs: rank 0 has not moved")


def test_the_error_of_a_rank_is_the_cause_and_the_hang_its_consequence(rank):
    rank.position.error = "DataError: sample 4711 is damaged"
    with rank.watch:
        assert rank.left.wait(60)
    assert "after its own error, DataError: sample 4711 is damaged" in rank.told[0]
    assert rank.causes == [False]


def test_a_report_that_was_told_stays_though_its_file_cannot_be_written(rank, monkeypatch, capsys):
    def full(_folder, *_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pretrain.report.hang.gathering.full_report", full)
    with rank.watch:
        assert rank.left.wait(60)
    assert len(rank.told) == 1
    assert rank.told[0].startswith("The run hangs: rank 0 has not moved")
    assert capsys.readouterr().err == f"{rank.folder / REPORT} is not there: [Errno 28] No space left on device\n"


def test_a_rank_that_began_the_report_and_died_is_named_where_nobody_can_take_it_over(rank, monkeypatch):
    rank.folder.mkdir(parents=True)
    for name in ("claimed", "claimed-next"):
        (rank.folder / name).write_text("3")
    rank.watch._writing = 0.1
    with rank.watch:
        assert rank.left.wait(60)
    assert rank.told[0].endswith("no answer from the other ranks: rank 3 began the report and did not finish it")


def test_a_rank_that_began_the_report_and_died_is_replaced(rank):
    rank.folder.mkdir(parents=True)
    (rank.folder / "claimed").write_text("3")
    rank.watch._writing = 0.1
    with rank.watch:
        assert rank.left.wait(60)
    assert rank.told[0].splitlines()[-1] == f"stacks of all threads: {rank.folder / REPORT}"
    assert rank.causes == [True]


def test_each_signal_to_a_rank_gets_an_answer(tmp_path, capsys):
    """One that it gives itself is none to another rank, after which a signal would be the same one."""
    rank = Rank(tmp_path / "now", given=0)
    rank.watch._questions._period = 0.02
    with rank.watch:
        for number in (1, 2):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert rank.waits_for(tmp_path / f"now-asked-{number}" / REPORT)
            time.sleep(0.1)  # its own thread looks for the folder
    printed = capsys.readouterr().err
    assert printed.count("positions of the ranks (SIGUSR1):\nrank 0 is in the optimizer, iteration 5; ") == 2


def test_a_signal_that_another_rank_has_just_asked_for_is_not_answered_again(tmp_path):
    rank = Rank(tmp_path / "now", given=0)
    rank.watch._questions._period = 0.02
    (tmp_path / "now-asked-1").mkdir()
    with rank.watch:
        assert rank.waits_for(tmp_path / "now-asked-1" / "answer-0.json")
        (tmp_path / "now-asked-1" / REPORT).touch()
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.2)
    assert not (tmp_path / "now-asked-2").exists()


def test_the_headline_is_about_the_rank_that_has_stood_still_longest_whoever_writes_it():
    states = {rank: replace(state(rank), seconds=seconds) for rank, seconds in ((0, 4.0), (1, 9.0))}
    assert hang_watch._headline(states) == "The run hangs: rank 1 has not moved for 9 s."
