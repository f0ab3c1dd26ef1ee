"""Ranks that are forked from one process behave as ranks that are started, and are started where they cannot be."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from launch.rank_processes import alive, pids_of_ranks, wait_for
from pretrain.launch.job import Job
from pretrain.launch.processes import rank_server, rank_starter
from pretrain.launch.processes.children import Processes, prepare_ranks
from pretrain.launch.processes.failure import CRASH
from pretrain.launch.processes.rank_starter import SWITCH, RankStarter
from pretrain.launch.world import LOCALHOST, free_port, node_worlds


@pytest.fixture
def starter():
    with RankStarter(forks=True) as starter:
        yield starter


def ranks(job, starter, nproc=2):
    return Processes(job, node_worlds([nproc], 0, LOCALHOST, free_port()), starter)


def told(job, rank):
    return json.loads((Path(job.run_dir) / f"{rank}.json").read_text())


def test_forked_ranks_are_what_started_ones_are_and_their_server_serves_the_next_attempt(job, starter):
    described = job("described")
    prepare_ranks(described, 2, starter)
    server = starter._server._process.pid
    assert ranks(described, starter).run() is None
    forked = [told(described, rank) for rank in range(2)]
    assert ranks(described, starter).run() is None
    assert starter._server._process.pid == server  # which has begun before the first of them
    with RankStarter(forks=False) as alone:
        assert ranks(described, alone).run() is None
    started = [told(described, rank) for rank in range(2)]
    assert [each.pop("name") for each in forked] == ["rank 0", "rank 1"]
    assert {each.pop("name")[:6] for each in started} == {"python"}
    for each in (*forked, *started):
        assert each.pop("numpy") not in {0.5507979025745755, None}  # that of seed 0, and none
        each["environment"].pop("MASTER_PORT")
        each["environment"].pop("PRETRAIN_FAILURE_FILE")
    assert forked == started
    assert forked[0]["blocked"] == []  # a signal that came before the rank's first line is handled now


@pytest.mark.full
def test_exit_codes_and_signals_of_forked_ranks_are_told(job, starter, capfd):
    assert "ended with exit code 7" in ranks(job("rank_1_exits_without_output"), starter).run().text
    for file in Path(job("report").run_dir).iterdir():
        file.unlink()
    killed = ranks(job("rank_1_is_killed"), starter).run()
    assert (killed.rank, killed.exit_code) == (1, CRASH)
    assert "killed by SIGKILL" in killed.text
    assert capfd.readouterr().err == ""


def test_a_server_that_was_killed_ends_no_rank_and_is_started_again(job, starter, capfd):
    begun = ranks(job("until_signalled"), starter)
    with begun:
        pids = pids_of_ranks(job("report").run_dir)
        server = starter._server._process
        os.kill(server.pid, signal.SIGKILL)
        wait_for(lambda: not alive(server.pid), "the end of the server")
        assert all(alive(pid) for pid in pids)
        begun.send(signal.SIGTERM)
        wait_for(lambda: not begun.running(), "the ranks to save")
    assert ranks(job("report"), starter).run() is None
    assert "the process that imports for all of them has ended" in capfd.readouterr().err
    assert ranks(job("report"), starter).run() is None
    assert starter._server._process.poll() is None
    assert capfd.readouterr().err == ""


def test_a_rank_that_is_forked_while_its_server_is_killed_is_not_started_a_second_time():
    dies = (
        "import os, socket, sys; from pretrain.launch.processes import rank_server; "
        "os.waitpid = lambda *_: os.kill(os.getpid(), 9); "
        "request = rank_server._serve(socket.socket(fileno=int(sys.argv[1]))); "
        "print(os.getpid(), request)"
    )
    own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own, its:
        command = [sys.executable, "-c", dies, str(its.fileno())]
        server = subprocess.Popen(command, pass_fds=[its.fileno()], stdout=subprocess.PIPE, text=True)
        its.close()
        own.settimeout(60)
        own.send(b'{"number": 1, "job": "of a rank"}')
        answer = own.recv(100).decode()
        output, _ = server.communicate()
    assert server.returncode == -signal.SIGKILL
    assert f"1 {output}" == f"{answer} {{'number': 1, 'job': 'of a rank'}}\n"


def test_a_late_answer_to_one_request_is_not_taken_for_that_to_the_next(job):
    server = object.__new__(rank_starter._Server)
    server._is_ready, server._requests = True, 1
    server._connection, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with server._connection, its:
        its.send(b"1 no process could be started")
        its.send(b"2 4711")
        assert server.fork(job("report"), {}).pid == 4711
        assert json.loads(its.recv(10_000))["number"] == 2


@pytest.mark.parametrize(
    ("imports", "reason"),
    [
        ("starts_a_thread", "imports have started 1 thread"),
        pytest.param("opens_a_device", "imports have opened /dev/", marks=pytest.mark.full),
        pytest.param("fails", "the imports failed: ModuleNotFoundError: No module named", marks=pytest.mark.full),
    ],
)
def test_where_imports_forbid_a_fork_ranks_start_by_themselves_and_the_reason_is_shown_once(
    job, starter, capfd, monkeypatch, imports, reason
):
    monkeypatch.setenv("FAKE_IMPORTS", imports)
    if imports == "opens_a_device" and not Path("/dev/ptmx").exists():
        pytest.skip("needs /dev/ptmx")
    for _ in range(2):
        assert ranks(job("report"), starter).run() is None
    errors = capfd.readouterr().err
    assert errors.startswith(f"Each rank makes its imports itself, and starts later: {reason}")
    assert errors.count("\n") == 1
    assert starter._server is None


@pytest.mark.full
def test_a_variable_starts_ranks_by_themselves(job, monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    with RankStarter(forks=True) as starter:
        assert ranks(job("report"), starter).run() is None
        assert starter._server is None


def test_this_process_may_not_be_forked_while_it_has_a_thread():
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    try:
        assert rank_server.hazard().startswith("imports have started ")
    finally:
        ends.set()
        thread.join()


@pytest.mark.full
def test_workers_of_forked_ranks_are_spawned(job, starter):
    spawning = job("spawning")
    assert ranks(spawning, starter).run() is None
    assert [told(spawning, rank) for rank in range(2)] == [[0, 1], [1, 1]]


def test_a_job_without_imports_of_its_own_is_imported():
    Job(recipe="r.yml", backend="cpu", run_dir=None, train="json:loads").import_modules()
