"""Attempts of one node, as its launcher makes them; another node is in this process."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta

import pytest

from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.processes.failure import CRASH, Failure
from pretrain.launch.rank_placement import Placement
from pretrain.launch.restarts import meeting, node_attempts, restarts
from pretrain.launch.restarts.node_attempts import run_node_attempts
from pretrain.launch.restarts.restart_policy import RestartPolicy
from pretrain.launch.restarts.restarting_rendezvous import RestartingRendezvous
from pretrain.launch.world import LOCALHOST, free_port
from pretrain.recipe import load_recipe

POLICY = RestartPolicy(limit=2, fewest_nodes=1)


@pytest.fixture
def nodes():
    """Two of one run."""
    port = free_port()
    return [Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=rank) for rank in range(2)]


@pytest.fixture
def run(job, monkeypatch):
    """Runs the attempts of a node whose ranks end as told; restarts follow at once."""
    monkeypatch.setattr(restarts, "_FIRST_WAIT", 0.0)
    monkeypatch.setattr(node_attempts, "require_shared", lambda *_: None)
    a_job = job("report")
    recipe = load_recipe(a_job.recipe)

    def run(node, run_ranks, policy=POLICY):
        placement = Placement(recipe=recipe, backend=None, nodes=node, nproc=1, world_size=2)
        return run_node_attempts(placement, a_job, policy, run_ranks)

    return run


def test_nodes_that_are_down_at_two_restarts_in_a_row_end_the_run_which_says_how_to_go_on(run, nodes, monkeypatch):
    policy, others = RestartPolicy(limit=9), []

    def join():
        others.append(RestartingRendezvous(nodes[1], policy.limit))
        others[0].join(1)

    def run_ranks(*_):
        others[0]._signs.stop()
        monkeypatch.setattr(meeting, "_SILENCE", 0.0)
        monkeypatch.setattr(meeting, "_ARRIVAL_TIMEOUT", timedelta(0))
        return Failure(rank=1, when=1.0, exit_code=CRASH, text="a crash")

    thread = threading.Thread(target=join)
    thread.start()
    failure = run(nodes[0], run_ranks, policy)
    thread.join(30)
    first, *_, last = failure.text.splitlines()
    assert first.endswith("0 of 2 nodes have come within 0:00:00.")
    assert "--allow-fewer-nodes restarts without some" in failure.text
    assert "No restart: the same failure came twice" in failure.text
    assert last == "Remove the cause. There is no checkpoint yet."
    assert failure.exit_code == CRASH


def test_a_signal_while_node_0_is_not_there_ends_the_launcher_as_any_other(run, nodes):
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    timer.start()
    try:
        with pytest.raises(SystemExit) as ended:
            run(nodes[1], None)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143
