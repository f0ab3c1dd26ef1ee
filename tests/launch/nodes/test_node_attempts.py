"""Attempts of one node, as its launcher makes them; another node is in this process."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import threading
from contextlib import nullcontext
from datetime import timedelta
from unittest.mock import Mock

import pytest
from torch.distributed import TCPStore

from launch.rank_processes import wait_for
from pretrain.errors import RecipeError
from pretrain.exit_codes import End, ExitCode
from pretrain.launch import node_attempts, restarts
from pretrain.launch.node_attempts import run_node
from pretrain.launch.nodes import attempt, store_client
from pretrain.launch.nodes.attempt import RunEnded
from pretrain.launch.nodes.joining import OF_NO_RUN, RUN
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.nodes.rendezvous import Rendezvous
from pretrain.launch.placement import Placement
from pretrain.launch.processes.failure import CRASH, USER_ERROR, Failure
from pretrain.launch.restarts import RestartPolicy
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

    def run(node, run_ranks, policy=POLICY, resume="no"):
        placement = Placement(recipe=recipe, backend=None, nodes=node, nproc=1, world_size=2)
        monkeypatch.setattr(node_attempts, "_run_ranks", run_ranks)
        return run_node(placement, dataclasses.replace(a_job, resume=resume), policy)

    return run


def test_nodes_that_are_down_at_two_restarts_in_a_row_end_the_run_which_says_how_to_go_on(run, nodes, monkeypatch):
    policy, others = RestartPolicy(limit=9), []

    def join():
        others.append(Rendezvous(nodes[1], policy))
        others[0].join(1)

    def run_ranks(*_):
        others[0]._heartbeat.stop()
        monkeypatch.setattr(attempt, "_ABSENCE", 0.0)
        monkeypatch.setattr(attempt, "ARRIVAL_TIMEOUT", timedelta(0))
        return Failure(rank=1, when=1.0, exit_code=CRASH, text="a crash")

    thread = threading.Thread(target=join)
    thread.start()
    failure = run(nodes[0], run_ranks, policy)
    thread.join(30)
    first, *_, last = failure.text.splitlines()
    assert first.endswith("0 of 2 nodes have joined within 0:00:00.")
    assert "--allow-fewer-nodes restarts without some" in failure.text
    assert "No restart: the run failed twice in the same way" in failure.text
    assert last == "Remove the cause. There is no checkpoint yet."
    assert failure.exit_code == CRASH


def test_a_node_that_waits_learns_that_the_run_was_stopped(run, nodes):
    stop = Failure.of_stop(End(ExitCode.SAVED, "SIGTERM"))
    member, spare = [], []

    def take_part(known):
        known.append(Rendezvous(nodes[1], POLICY))
        try:
            known[0].join(1)
            wait_for(lambda: spare and spare[0]._spare, "the spare node")
            known.append(known[0].settle(stop, None)[0])
        except RunEnded as ended:
            known.append(ended.failure)
        known[0].leave()

    threads = [threading.Thread(target=take_part, args=(known,)) for known in (member, spare)]
    threads[0].start()

    def run_ranks(_job, _worlds, rendezvous, _starter):
        threads[1].start()
        wait_for(lambda: spare and spare[0]._spare, "the spare node")
        return rendezvous.report(stop)

    assert run(nodes[0], run_ranks) == stop
    for thread in threads:
        thread.join(30)
    assert [member[1], spare[1]] == [stop, stop]


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


@pytest.fixture
def cut_off(monkeypatch, nodes):
    """Lets node 1 lose node 0 at once, and end well when it takes part again; returns the times that it took part."""
    loss, times = Failure(rank=0, when=1.0, exit_code=CRASH, text="node 0 is lost"), []

    def take_part(*_):
        times.append(1)
        if len(times) == 1:
            raise RunEnded(loss, of_loss=True)

    monkeypatch.setattr(node_attempts, "_take_part", take_part)
    return times


def test_a_node_that_was_cut_off_takes_part_again_when_the_network_is_back(run, nodes, cut_off, monkeypatch, capsys):
    tries = iter([OSError("No route to host"), TimeoutError("timed out")])
    reach = socket.create_connection

    def connect(*arguments, **more):
        if error := next(tries, None):
            raise error
        return reach(*arguments, **more)

    monkeypatch.setattr(socket, "create_connection", connect)
    with socket.create_server(nodes[1].endpoint()):
        assert run(nodes[1], None) is None
    assert len(cut_off) == 2
    text = "node 0 cannot be reached from here; this node tries for 15 minutes and joins again when it can."
    assert capsys.readouterr().err == f"--rdzv {nodes[1].rendezvous}: {text}\n"


@pytest.fixture
def loss_at_first(monkeypatch):
    """Lets a node lose the store at once, and then take part; returns that loss."""
    loss, take_part = Failure(rank=0, when=1.0, exit_code=CRASH, text="the store is lost"), node_attempts._take_part

    def lose(*given):
        if given[-1] is None:
            raise RunEnded(loss, of_loss=True)
        return take_part(*given)

    monkeypatch.setattr(node_attempts, "_take_part", lose)
    return loss


def test_a_node_that_comes_back_to_another_run_ends_with_the_loss_of_its_own(run, nodes, loss_at_first):
    """Node 0 has left meanwhile, and its port is another run's."""
    other = Rendezvous(nodes[0], RestartPolicy(limit=7))
    assert run(nodes[1], None) == loss_at_first
    other.leave()


def test_a_node_does_not_wait_where_node_0_serves_no_longer(run, nodes, cut_off):
    assert run(nodes[1], None).text == "node 0 is lost"
    assert len(cut_off) == 1


def test_a_node_waits_for_a_rendezvous_elsewhere_that_is_started_again(run, nodes, cut_off, monkeypatch):
    elsewhere = dataclasses.replace(nodes[1], external=True)
    monkeypatch.setattr(store_client, "_PERIOD", 0.01)
    monkeypatch.setattr(
        socket, "create_connection", Mock(side_effect=[ConnectionRefusedError(), TimeoutError(), Mock()])
    )
    assert run(elsewhere, None, resume="auto") is None
    assert len(cut_off) == 2


def test_a_run_is_not_begun_once_more_at_a_rendezvous_that_was_started_again(run, nodes, loss_at_first):
    store = TCPStore(*nodes[1].endpoint(), is_master=True, wait_for_workers=False)
    store.set(RUN, OF_NO_RUN)
    assert run(dataclasses.replace(nodes[1], external=True), None) == loss_at_first


class Reported:
    """A rendezvous that keeps what a node reports."""

    place = 3

    def __init__(self):
        self.failures = []

    def wait_for_launcher(self):
        pass

    def report(self, failure):
        self.failures.append(failure)
        return failure

    def end(self, failure):
        assert failure in self.failures  # it ends the run also on nodes that still wait


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RecipeError("no layers"), USER_ERROR, "no layers"),
        (OSError("no process"), CRASH, "OSError: no process"),
        (SystemExit(143), CRASH, "exit code 143"),
    ],
    ids=["user error", "crash", "signal"],
)
def test_whatever_ends_a_node_of_a_hostfile_before_its_ranks_is_reported_to_the_others(error, code, text):
    def placement():
        raise error

    rendezvous = Reported()
    with nullcontext() if not isinstance(error, SystemExit) else pytest.raises(SystemExit):
        node_attempts._run_node_of_hostfile(rendezvous, placement, None)
    (failure,) = rendezvous.failures
    assert failure.exit_code == code
    assert text in failure.text
    if code == USER_ERROR:
        assert (failure.place, failure.host) == (3, socket.gethostname())
