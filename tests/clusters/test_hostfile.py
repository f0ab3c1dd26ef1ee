"""Runs that pdsh starts on the hosts of a hostfile, over a real ssh."""

import os
import signal

import pytest

from clusters import services
from clusters.training import STEP
from clusters.virtual_nodes import wait_until
from pretrain.exit_codes import ExitCode


@pytest.fixture
def hosted(training):
    """The command line of the training with a rank on each of node1 and node2."""
    hosts = training.folder / "hosts"
    hosts.write_text("node1 slots=1\nnode2 slots=1\n")
    return training.words("--hostfile", hosts, "--max-restarts", "2")


def test_a_killed_rank_is_named_and_the_ranks_are_started_again(nodes, training, hosted):
    run = training.start(nodes[0], *hosted)
    training.reach(5)
    os.kill(training.ranks(nodes[2])[-1], signal.SIGKILL)
    run.wait_for("rank 1 failed", "killed by SIGKILL", "restart 1 of 2", STEP)
    training.end()
    assert run.code() == 0, run.printed()


def test_sigterm_to_the_launcher_saves_on_all_hosts(nodes, training, hosted):
    run = training.start(nodes[0], *hosted)
    training.reach(5)
    run.signal(signal.SIGTERM)
    assert run.code() == ExitCode.SAVED, run.printed()
    assert f"stopped after iteration {training.saved()}: SIGTERM" in run.printed()


def test_a_host_that_refuses_ssh_is_named_at_once(nodes, training, hosted, no_ssh):
    """In 30 s on a quiet machine; this is the one test with a limit of time, and gives a busy one twice that."""
    run = training.start(nodes[0], *hosted)
    assert run.code(limit=60) == ExitCode.USER_ERROR, run.printed()
    assert "node2" in run.printed()
    assert "refused" in run.printed()


@pytest.fixture
def no_ssh(nodes, tmp_path):
    """For the test nobody listens at node2's port 22."""
    listening = ("sshd", "-D")
    for pid in nodes[2].pids(*listening):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not nodes[2].pids(*listening), lambda: "sshd goes on")
    yield
    services.start_sshd(nodes[2], tmp_path)
    wait_until(lambda: "listening" in (tmp_path / "sshd-node2.log").read_text(), lambda: "sshd does not start")
