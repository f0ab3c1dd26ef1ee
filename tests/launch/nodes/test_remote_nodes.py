"""Nodes whose launcher program has ended."""

from __future__ import annotations

import signal
import subprocess

import pytest

from pretrain.launch.nodes.remote_nodes import RemoteNodes
from pretrain.launch.processes.failure import CRASH, USER_ERROR


class Member:
    """The launcher in the rendezvous; nodes end when they are asked to."""

    failure = None

    def __init__(self, *, joined=True, exit_codes=None):
        self.joined, self.exit_codes = joined, exit_codes
        self.asked = []

    def start(self):
        pass

    def stop_nodes(self, number, times):
        self.asked.append((number, times))

    def wait_for_exit_codes(self, seconds):
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
