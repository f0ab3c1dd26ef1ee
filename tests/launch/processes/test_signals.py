"""Ctrl-C and kill, as a shell sends them to the launcher."""

import json
import os
import signal
import subprocess
import time

import pytest

from launch.rank_processes import alive, pids_of_ranks, wait_for
from pretrain.exit_codes import ExitCode


@pytest.mark.parametrize(
    ("sent", "received"),
    [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGTERM")],
    ids=str,
)
def test_a_signal_reaches_every_rank_once_and_the_launcher_waits(launcher, tmp_path, sent, received):
    process = launcher("until_signalled")
    pids_of_ranks(tmp_path / "run")
    process.send_signal(sent)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (ExitCode.SAVED, "")
    assert [json.loads((tmp_path / f"run/{rank}.signals").read_text()) for rank in range(2)] == [[received]] * 2


@pytest.mark.full
def test_a_request_for_a_report_or_a_profile_reaches_every_rank_each_time_and_ends_none(launcher, tmp_path):
    process, run_dir = launcher("reporting"), tmp_path / "run"
    for rank in range(2):
        wait_for((run_dir / f"{rank}.deaf").exists, "the ranks to run")
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        process.send_signal(number)  # they do not handle it yet
    (run_dir / "listen").touch()
    pids_of_ranks(run_dir)
    for times, number in enumerate((signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1), 1):
        process.send_signal(number)
        for rank in range(2):
            wait_for((run_dir / f"{rank}.{times}").exists, "the request")
    process.send_signal(signal.SIGTERM)
    assert (process.communicate(timeout=120)[1], process.returncode) == ("", ExitCode.SAVED)


@pytest.mark.full
def test_a_second_signal_kills_ranks_that_do_not_exit(launcher, tmp_path):
    process = launcher("ignoring_signals")
    pids = pids_of_ranks(tmp_path / "run")
    process.send_signal(signal.SIGINT)
    wait_for((tmp_path / "run/0.heard").exists, "the first signal to be passed on")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "")
    assert not any(alive(pid) for pid in pids)


@pytest.mark.full
def test_a_scheduler_that_repeats_its_signal_at_once_does_not_keep_ranks_from_saving(launcher, tmp_path):
    """Slurm's time limit sends SIGTERM twice to each process of a step, 10 to 26 ms apart."""
    process = launcher("until_signalled")
    pids_of_ranks(tmp_path / "run")
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    assert (process.communicate(timeout=120)[1], process.returncode) == ("", ExitCode.SAVED)
    assert [json.loads((tmp_path / f"run/{rank}.signals").read_text()) for rank in range(2)] == [["SIGTERM"]] * 2


@pytest.mark.full
def test_a_signal_to_one_rank_ends_the_run_with_the_code_of_a_saved_one(launcher, tmp_path):
    process = launcher("until_rank_0_is_signalled")
    rank_0 = pids_of_ranks(tmp_path / "run", 1)[0]
    os.kill(rank_0, signal.SIGTERM)
    errors = process.communicate(timeout=120)[1]
    assert (errors, process.returncode) == ("A rank got SIGTERM: all ranks have saved and left.\n", ExitCode.SAVED)


@pytest.mark.full
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ranks_that_do_not_handle_signals_yet_end_without_output(launcher, tmp_path, sent, code):
    process = launcher("importing")
    pids_of_ranks(tmp_path / "run")
    process.send_signal(sent)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (code, "")


def test_no_rank_outlives_a_launcher_that_is_killed(launcher, tmp_path):
    process = launcher("ignoring_signals")
    pids = pids_of_ranks(tmp_path / "run")
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids), "the ranks to end")


@pytest.mark.full
def test_a_launcher_under_nohup_survives_the_terminal(launcher, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does for its child
    try:
        process = launcher("until_signalled")
    finally:
        signal.signal(signal.SIGHUP, before)
    pids_of_ranks(tmp_path / "run")
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert json.loads((tmp_path / "run/0.signals").read_text()) == ["SIGTERM"]


@pytest.mark.full
def test_a_rank_killed_from_outside_is_a_failure(launcher, tmp_path):
    process = launcher("ignoring_signals")
    pids = pids_of_ranks(tmp_path / "run")
    os.kill(pids[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert errors.startswith("rank 1 failed:\nIt was killed by SIGKILL.")
    assert not alive(pids[0])
