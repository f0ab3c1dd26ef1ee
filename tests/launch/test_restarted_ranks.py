"""A launcher that starts its ranks again, as a user sees it."""

from __future__ import annotations

import json
import os
import signal

import pytest

from launch.rank_processes import alive, pids_of_ranks, wait_for
from pretrain.errors import RunError
from pretrain.exit_codes import ExitCode
from pretrain.launch.run_lock import held

pytestmark = [
    pytest.mark.usefixtures("forked_python"),
    pytest.mark.parametrize("launcher", ["restarting"], indirect=True),
]


def ended(process):
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


def attempts(run_dir, rank):
    """Return what the rank was called with each time: resume, number of ranks, port."""
    return [json.loads(line) for line in (run_dir / f"{rank}.attempts").read_text().splitlines()]


@pytest.mark.parametrize("nproc", [pytest.param(1, marks=pytest.mark.full), 2])
def test_ranks_that_die_twice_are_started_three_times(launcher, tmp_path, nproc):
    """A single rank is a process of its own too: the launcher survives it."""
    code, errors = ended(launcher("dying_twice", nproc))
    assert code == 0
    assert errors.count(f"rank {nproc - 1} failed:\nIt was killed by SIGKILL.") == 2
    lines = [line for line in errors.splitlines() if "restart" in line]
    assert lines == [
        "restart 1 of 3 in 1 s, from the beginning",
        "restart 2 of 3 in 2 s, from the beginning",
        "ended after 2 restarts",
    ]
    for rank in range(nproc):
        resumed, sizes, ports = zip(*attempts(tmp_path / "run", rank), strict=True)
        assert (resumed, sizes) == ((False, True, True), (nproc,) * 3)
        assert len(set(ports)) == 3


@pytest.mark.full
def test_the_same_death_without_progress_is_not_repeated_endlessly(launcher, tmp_path):
    code, errors = ended(launcher("dying_always"))
    assert code == 1
    assert len(attempts(tmp_path / "run", 0)) == 2
    assert "No restart: the run failed twice in the same way before the first iteration" in errors


def test_a_user_error_is_not_repeated(launcher):
    code, errors = ended(launcher("rank_1_misses_data"))
    assert (code, errors) == (2, "rank 1: corpus.bin is truncated.\nBuild it again.\n")


def wait_for_back_off(process):
    """Read what the launcher prints until it waits for a restart."""
    while "restart 1 of 3" not in process.stderr.readline():
        assert process.poll() is None


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_back_off_ends_the_run(launcher, tmp_path, number):
    process = launcher("dying_always")
    wait_for_back_off(process)
    process.send_signal(signal.SIGUSR1)  # there is no rank that could report
    with pytest.raises(RunError, match="is in use by process"), held(tmp_path / "run"):
        pass
    process.send_signal(number)
    code, errors = ended(process)
    assert code == 128 + number
    assert errors.startswith("SIGUSR1 is ignored: ")
    assert len(errors.splitlines()) == 1
    assert len(attempts(tmp_path / "run", 0)) == 1


def test_ranks_that_have_saved_as_one_of_them_was_signalled_go_on(launcher, tmp_path):
    process = launcher("signalled_once")
    os.kill(pids_of_ranks(tmp_path / "run", 1)[0], signal.SIGTERM)
    code, errors = ended(process)
    assert code == 0
    assert errors.splitlines() == [
        "A rank got SIGTERM: all ranks have saved and left.",
        "restart 1 of 3 in 1 s, from the beginning",
        "ended after 1 restart",
    ]


def test_a_signal_after_a_restart_lets_the_ranks_save_and_ends_the_run(launcher, tmp_path):
    process = launcher("dying_once_then_endless")
    pids_of_ranks(tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    code, errors = ended(process)
    assert code == ExitCode.SAVED
    assert errors.endswith("ended after 1 restart\n")
    assert json.loads((tmp_path / "run/1.signals").read_text()) == ["SIGTERM"]


def test_a_launcher_that_is_killed_after_a_restart_leaves_no_process_and_no_lock(launcher, tmp_path):
    process = launcher("dying_once_then_endless")
    pids = pids_of_ranks(tmp_path / "run")
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids), "the ranks to end")
    with held(tmp_path / "run"):
        pass
