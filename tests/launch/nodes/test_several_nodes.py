"""Two nodes on one machine whose launchers start their ranks again together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch.conftest import HERE
from launch.rank_processes import pids_of_ranks, wait_for
from pretrain.exit_codes import ExitCode
from pretrain.launch.world import free_port

pytestmark = pytest.mark.usefixtures("forked_python")


@pytest.fixture
def node(job, tmp_path):
    """Starts the launcher of a node, the first of them node 0; restarts and fewest nodes are its options."""
    endpoint, started = f"127.0.0.1:{free_port()}", []

    def start(train, *options, kind="node"):
        words = job(train, prepared=False).to_json(), endpoint, *map(str, options)
        return begin(HERE / "launcher.py", kind, *words)

    def begin(*words):
        started.append(subprocess.Popen([sys.executable, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True))
        return started[-1]

    start.serve = lambda: begin("-m", "pretrain.cli.main", "rendezvous", "--port", endpoint.rpartition(":")[2])
    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process):
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


def attempts(run_dir, rank):
    return [json.loads(line) for line in (run_dir / f"{rank}.attempts").read_text().splitlines()]


def test_the_ranks_of_all_nodes_end_and_begin_together(node, tmp_path):
    first, second = (node("dying_twice", 3) for _ in range(2))
    for process in (first, second):
        code, errors = ended(process)
        assert code == 0
        assert errors.count("rank 1 failed:\nIt was killed by SIGKILL.") == 2
        assert "restart 2 of 3 in 2 s, from the beginning\n" in errors
    for rank in range(2):
        resumed, sizes, ports = zip(*attempts(tmp_path / "run", rank), strict=True)
        assert (resumed, sizes) == ((False, True, True), (2, 2, 2))
        assert len(set(ports)) == 3


@pytest.mark.full
def test_a_failure_without_progress_ends_all_nodes(node):
    nodes = [node("dying_always", 3) for _ in range(2)]
    for process in nodes:
        code, errors = ended(process)
        assert code == 1
        assert "No restart: the run failed twice in the same way before the first iteration" in errors


def lose_node_1(node, tmp_path, *options):
    """Start two nodes and kill the launcher of the one that came second; return the other."""
    first = node("waiting_in_the_first_attempt", *options)
    second = node("waiting_in_the_first_attempt", *options)
    pids = pids_of_ranks(tmp_path / "run")
    second_is_node_1 = str(second.pid) == parent_of(pids[1])
    survivor, lost = (first, second) if second_is_node_1 else (second, first)
    lost.kill()
    lost.wait()
    os.kill(pids[0], signal.SIGKILL)  # it would notice the loss in its next collective
    return survivor


def parent_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]


def test_a_node_whose_launcher_was_killed_comes_back_with_the_same_command(node, tmp_path):
    survivor = lose_node_1(node, tmp_path, 3)
    again = node("waiting_in_the_first_attempt", 3)
    code, errors = ended(survivor)
    assert (code, "restart 1 of 3 in 1 s" in errors) == (0, True)
    assert ended(again)[0] == 0
    assert [size for _, size, _ in attempts(tmp_path / "run", 1)] == [2, 2]


@pytest.mark.full
def test_the_run_goes_on_with_fewer_nodes_where_that_is_allowed(node, tmp_path):
    survivor = lose_node_1(node, tmp_path, 3, 1)
    code, errors = ended(survivor)
    assert code == 0
    assert errors.endswith("ended after 1 restart\n")
    assert [size for _, size, _ in attempts(tmp_path / "run", 0)] == [2, 1]


@pytest.mark.full
def test_a_signal_to_one_node_in_the_back_off_ends_both(node):
    nodes = [node("dying_always", 3) for _ in range(2)]
    for process in nodes:
        while "restart 1 of 3" not in process.stderr.readline():
            assert process.poll() is None
    nodes[0].send_signal(signal.SIGTERM)
    codes = [ended(process) for process in nodes]
    assert codes[0][0] == 143
    assert codes[1][0] == 1
    assert "was asked to end by SIGTERM." in codes[1][1]


def test_a_signal_to_one_node_ends_both_without_a_restart_when_their_ranks_have_saved(node, tmp_path):
    nodes = [node("until_rank_1_is_signalled", 3) for _ in range(2)]
    rank_1 = pids_of_ranks(tmp_path / "run")[1]
    of_rank_1 = next(process for process in nodes if str(process.pid) == parent_of(rank_1))
    of_rank_1.send_signal(signal.SIGTERM)
    assert [ended(process) for process in nodes] == [(ExitCode.SAVED, "")] * 2


@pytest.fixture
def three(node, tmp_path):
    """Starts three nodes whose rendezvous is served elsewhere; returns the two that train, by rank, and the spare."""

    def start(train):
        assert "is served at port" in node.serve().stderr.readline()
        nodes = [node(train, kind="spare") for _ in range(3)]
        places = [parent_of(pid) for pid in pids_of_ranks(tmp_path / "run")]
        first, second = (next(process for process in nodes if str(process.pid) == place) for place in places)
        return first, second, next(process for process in nodes if process not in {first, second})

    return start


@pytest.mark.full
def test_the_run_goes_on_without_node_0_where_the_rendezvous_is_elsewhere(three, tmp_path):
    lost, *left = three("waiting_in_the_first_attempt")
    lost.kill()
    os.kill(pids_of_ranks(tmp_path / "run")[1], signal.SIGKILL)  # it would notice the loss in its next collective
    for process in left:
        code, errors = ended(process)
        assert (code, "ended after 1 restart" in errors) == (0, process is left[0])
    assert [size for _, size, _ in attempts(tmp_path / "run", 0)] == [2, 2]


@pytest.mark.full
def test_a_signal_to_one_node_ends_a_spare_too(three):
    nodes = three("until_rank_1_is_signalled")
    nodes[1].send_signal(signal.SIGTERM)
    assert [ended(process)[0] for process in nodes] == [ExitCode.SAVED] * 3


@pytest.mark.full
def test_a_request_for_a_report_at_one_node_reaches_the_ranks_of_all(node, tmp_path):
    nodes, run_dir = [node("reporting", 3) for _ in range(2)], tmp_path / "run"
    (run_dir / "listen").touch()
    pids_of_ranks(run_dir)
    for times, process in enumerate(nodes, 1):
        process.send_signal(signal.SIGUSR1)
        for rank in range(2):
            wait_for((run_dir / f"{rank}.{times}").exists, "the request")
    for process in nodes:
        process.send_signal(signal.SIGTERM)
    assert [ended(process) for process in nodes] == [(ExitCode.SAVED, "")] * 2
