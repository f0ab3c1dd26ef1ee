"""Nodes whose launcher program has ended."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from launch.rank_processes import wait_for
from pretrain.launch.nodes import remote_nodes
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.nodes.remote_nodes import LauncherMember, RemoteNodes
from pretrain.launch.nodes.rendezvous import Rendezvous
from pretrain.launch.processes.failure import CRASH, USER_ERROR
from pretrain.launch.world import LOCALHOST, free_port


class Member:
    """The launcher in the rendezvous; nodes end when they are asked to, unless they are deaf."""

    failure = None
    orphaned = False

    def __init__(self, *, joined=True, exit_codes=None, deaf=False):
        self.deaf = deaf
        self.joined, self.exit_codes = joined, exit_codes
        self.asked, self.waits = [], 0

    def start(self):
        pass

    def stop_nodes(self, number, times):
        self.asked.append((number, times))

    def wait_for_exit_codes(self, seconds):
        self.waits += 1
        if not self.deaf:
            self.exit_codes = [128 + number for number, _ in self.asked]

    def close(self):
        pass

    def join(self, seconds):
        pass


def run_to_end(member, code=0):
    """Return the failures of nodes whose launcher program ends at once."""
    with RemoteNodes(["sh", "-c", f"exit {code}"], {}, member) as nodes:
        subprocess.Popen.wait(nodes._program)
        return nodes.failures()


def test_nodes_that_have_lost_their_launcher_program_are_ended_before_a_restart():
    member = Member()
    (failure,) = run_to_end(member, 9)
    assert (failure.exit_code, failure.passing) == (CRASH, False)
    assert member.asked == [(signal.SIGTERM, 2)]


@pytest.mark.parametrize("member", [Member(joined=False), Member(exit_codes=[0, 0])], ids=["unknown", "ended"])
def test_nodes_that_have_ended_or_never_came_are_left_alone(member):
    run_to_end(member)
    assert member.asked == []


def test_hosts_that_were_not_reached_are_a_mistake_that_may_pass():
    (failure,) = run_to_end(Member(joined=False), 1)
    assert (failure.exit_code, failure.passing) == (USER_ERROR, True)
    (failure,) = run_to_end(Member(exit_codes=[0, 143]), 1)
    assert failure.asked


@pytest.mark.parametrize("program", [["true"], ["sleep", "600"]], ids=["ended", "runs"])
def test_a_host_that_does_not_answer_is_waited_for_once(program, monkeypatch):
    monkeypatch.setattr(remote_nodes, "_END_TIMEOUT", 0.1)
    member = Member(deaf=True)
    with RemoteNodes(program, {}, member) as nodes:
        if program == ["true"]:
            subprocess.Popen.wait(nodes._program)
        nodes.kill()
    assert member.asked == [(signal.SIGTERM, 2)]
    assert member.waits == (program == ["true"])


@pytest.mark.parametrize("may_restart", [True, False], ids=["a restart may follow", "none follows"])
@pytest.mark.parametrize("program", [["true"], ["sleep", "600"]], ids=["ended", "runs"])
def test_nodes_that_have_lost_the_first_host_get_the_time_to_notice_before_a_restart(program, may_restart, monkeypatch):
    """The launcher finds the loss itself, later than the end of its program."""
    waits, port = [], free_port()
    node = [Rendezvous(Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=0, run="7f"))]
    monkeypatch.setattr(remote_nodes, "_REJOIN_TIMEOUT", 0.3)
    monkeypatch.setattr(remote_nodes, "_ORPHANS_TIMEOUT", 0.7 if may_restart else 600)
    monkeypatch.setattr(remote_nodes, "_END_TIMEOUT", 0.0)
    member = LauncherMember((LOCALHOST, port), ["host-a", "host-b"], "7f")
    with RemoteNodes(program, {}, member, may_restart=may_restart) as nodes:
        wait_for(lambda: member.joined, "the launcher")
        node.clear()
        if program == ["true"]:
            subprocess.Popen.wait(nodes._program)
            assert not member.orphaned  # not known yet
        else:
            wait_for(lambda: member.failure, "the loss")
        nodes.kill()
        waits.append(time.monotonic())
    waited = time.monotonic() - waits[0]
    assert waited > 0.7 if may_restart else waited < 600
    assert not nodes.running()


def test_a_signal_ends_the_wait_for_nodes():
    def end(*_):
        raise SystemExit(130)

    member, before = Member(deaf=True), signal.signal(signal.SIGALRM, end)
    member.orphaned = True
    try:
        with pytest.raises(SystemExit), RemoteNodes(["sleep", "600"], {}, member, may_restart=True) as nodes:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not nodes.running()
