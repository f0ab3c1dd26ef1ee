"""A rank that stays when the others have ended does not keep the launcher waiting, where the job says so."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pretrain.errors import DataError
from pretrain.exit_codes import End
from pretrain.launch.job import EXAMINE, ForwardJob, job_of
from pretrain.launch.processes.children import Processes, _Child
from pretrain.launch.processes.failure import Failure
from pretrain.launch.processes.rank import write_end
from pretrain.launch.processes.supervision import supervise

DONE = ["true"]
"""A rank that has done its work, and says so."""
JOB = ForwardJob(recipe="r.yml", backend="cpu", function=EXAMINE, reads_data=False, patience=0.2)


@pytest.fixture
def ranks(tmp_path):
    """Start programs as ranks 0, 1, ... of a node."""
    started = []

    def start(*commands):
        processes = Processes(JOB, [])
        for rank, command in enumerate(commands):
            started.append(subprocess.Popen(command, start_new_session=True))
            processes._children.append(_Child(rank, started[-1], Path(tmp_path / f"{rank}.json")))
            if command is DONE:
                write_end(End(), processes._children[-1].failure_file)
        return processes

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_rank_that_stays_is_ended_and_named(ranks):
    processes = ranks(DONE, ["sleep", "600"])
    begun = time.monotonic()
    failure = supervise(processes, lambda: processes.left_behind(JOB.patience))
    assert time.monotonic() - begun < 300
    assert failure.rank == 1
    assert not failure.expected
    assert failure.text.startswith("It still ran 0.2 s after another rank of this node had ended, and was killed")
    assert not processes.running()


def test_ranks_that_all_run_or_have_all_ended_are_left_alone(ranks):
    running = ranks(["sleep", "60"], ["sleep", "60"])
    assert running.left_behind(0) is None
    assert supervise(ranks(DONE, DONE)) is None


def test_a_job_says_how_long_its_ranks_may_stay():
    assert job_of(JOB.to_json()) == JOB
    assert ForwardJob(recipe="r.yml", backend="cpu", function=EXAMINE, reads_data=False).patience is None


def test_a_rank_that_dies_leaves_the_others_their_time_to_report(ranks):
    """The report of another rank ends the wait; the cause that is shown is the signal."""
    processes = ranks(["sh", "-c", "kill -9 $$"], ["sh", "-c", "sleep 0.3; exit 1"], ["sleep", "600"])
    Failure.of_report(1).write(processes._children[1].failure_file)
    begun = time.monotonic()
    failure = supervise(processes, lambda: processes.left_behind(300), failure_ends=False)
    assert 0.3 < time.monotonic() - begun < 300
    assert failure.rank == 0
    assert "killed by SIGKILL" in failure.text
    assert processes._children[1].process.returncode == 1


def test_a_report_is_all_that_is_to_be_shown(ranks):
    processes = ranks(["false"], DONE)
    Failure.of_report(0).write(processes._children[0].failure_file)
    failure = supervise(processes, lambda: processes.left_behind(300), failure_ends=False)
    assert (failure.rank, failure.reported, failure.exit_code) == (0, True, 1)


def test_the_failure_that_a_rank_has_told_is_known_while_it_runs(ranks):
    """It writes a checkpoint before it ends."""
    processes = ranks(["sleep", "60"], ["sleep", "60"])
    failure = Failure.of(DataError("sample 4711 is damaged"), 1, with_traceback=False)
    failure.write(processes._children[1].failure_file)
    assert (processes.failures(), processes.told()) == ([], [failure])


def test_a_rank_that_the_system_does_not_end_is_named_and_waited_for_once(ranks, monkeypatch, capsys):
    """It waits for a file system or a driver, in state D."""
    processes = ranks(["sleep", "60"], ["sleep", "60"])
    endless = processes._children[1].process
    monkeypatch.setattr("pretrain.launch.processes.children._LETTING_GO", 0.1)
    real = os.killpg
    monkeypatch.setattr(os, "killpg", lambda pid, number: pid == endless.pid or real(pid, number))
    for _ in range(2):
        processes.kill()
    assert processes._children[0].process.returncode == -signal.SIGKILL
    assert capsys.readouterr().err.count(f"rank 1 still runs 0.1 s after SIGKILL (process {endless.pid}): ") == 1
