"""A rendezvous that is served elsewhere: any node leads, spares wait, and a node that fails twice is left out."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from torch.distributed import TCPStore

from launch.rank_processes import wait_for
from pretrain.cli.options import RankCounts
from pretrain.cli.run import place_of_process
from pretrain.errors import LaunchError
from pretrain.launch.nodes import attempt, heartbeats, leader, rendezvous
from pretrain.launch.nodes.attempt import Arrival, RunEnded
from pretrain.launch.nodes.blame import Blame, culprit
from pretrain.launch.nodes.joining import OF_NO_RUN, RUN
from pretrain.launch.nodes.leader import LeaderChanged
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.nodes.rendezvous import Rendezvous
from pretrain.launch.processes.failure import CRASH, USER_ERROR, Failure
from pretrain.launch.restarts import NO_RESTARTS, Decision, RestartPolicy, Restarts, RunProgress
from pretrain.launch.world import LOCALHOST

POLICY = RestartPolicy(limit=5)
CRASHED = Failure(rank=1, when=1.0, exit_code=CRASH, text="a crash")


@pytest.fixture
def member(monkeypatch):
    """Makes a node of a run of two, whose store this process serves."""
    monkeypatch.setattr(leader, "_PERIOD", 0.05)
    monkeypatch.setattr(heartbeats, "_BEAT", 0.05)
    monkeypatch.setattr(attempt, "_PERIOD", 0.02)
    monkeypatch.setattr(rendezvous, "_PERIOD", 0.02)
    store = TCPStore(LOCALHOST, 0, is_master=True, wait_for_workers=False)
    store.set(RUN, OF_NO_RUN)
    made = []

    def make(spares=1):
        nodes = Nodes(count=2, rendezvous=f"{LOCALHOST}:{store.port}", spares=spares, external=True)
        made.append(Rendezvous(nodes, POLICY))
        return made[-1]

    yield make
    for node in made:
        node._heartbeat.stop()


def begin(first, *others):
    """Let the first open an attempt that the others join; return the place of each."""

    def join(node):
        with suppress(RunEnded):  # a spare's, at the end of the test
            node.join(1)

    threads = [threading.Thread(target=join, args=(other,), daemon=True) for other in others]
    for thread in threads:
        thread.start()
    first.begin(first.meet(1, lambda nodes, _: nodes))
    wait_for(lambda: sum(not thread.is_alive() for thread in threads) == 1, "one other node to take part")
    return [node.place if node._is_member else None for node in (first, *others)]


def lose(node):
    node._heartbeat.stop()
    node._heartbeat.join()


def test_another_node_leads_when_the_first_is_lost_and_a_spare_takes_its_place(member, monkeypatch):
    first, second = member(), member()
    assert (first.leads, second.leads) == (True, False)
    assert begin(first, second) == [0, 1]
    first.keep({"count": 3})
    lose(first)
    for module, name in ((leader, "_SILENCE"), (attempt, "_SHORT_SILENCE"), (attempt, "_ABSENCE")):
        monkeypatch.setattr(module, name, 1.5)
    lost_peer = Failure(rank=1, when=1.0, exit_code=CRASH, text="connection closed", lost_peer=True)
    cause, verdict = second.settle(lost_peer, lambda _: Decision(wait=0.0))
    assert second.leads
    assert (cause.place, verdict) == (0, Decision(wait=0.0))
    assert second.kept()["count"] == 3
    assert begin(second, member()) == [1, 0]  # the other keeps its place


def test_a_spare_does_not_lead_while_an_attempt_runs(member, monkeypatch):
    first, second = member(), member()
    begin(first, second)
    monkeypatch.setattr(leader, "_SILENCE", -1.0)
    assert not member()._may_lead()
    assert second._may_lead()


def test_a_leader_that_another_node_has_replaced_leads_no_longer(member, monkeypatch):
    first, second = member(), member()
    begin(first, second)
    first._leader.hand_to(second._launcher)
    with pytest.raises(LeaderChanged):
        wait_for(second._require_no_end, "the other to lead")
    assert (first.leads, second.leads) == (False, True)


def test_a_node_that_leads_next_does_not_judge_what_has_been_judged(member):
    first, second = member(), member()
    begin(first, second)
    decided = first.settle(CRASHED, lambda _: Decision(wait=7.0))
    first._blame.left_out.append(first._launcher)
    first.keep({})
    wait_for(lambda: second._leader.follow(second._may_lead), "the other to lead")
    assert (first.leads, second.leads) == (False, True)
    assert second.settle(CRASHED, lambda _: Decision(text="once more")) == decided


def test_a_spare_counts_while_it_gives_heartbeats(member, monkeypatch):
    monkeypatch.setattr(attempt, "_ABSENCE", 1.0)
    first, second, third = member(), member(), member()
    begin(first, second, third)
    waiting = third if second._is_member else second
    wait_for(lambda: first._attempt.spares([]) == 1, "the spare to come")
    assert first._attempt.spares([waiting._launcher]) == 0
    lose(waiting)
    wait_for(lambda: first._attempt.spares([]) == 0, "the loss of the spare")


@pytest.mark.parametrize(
    ("run", "is_told", "text"),
    [
        (OF_NO_RUN, False, "`pretrain rendezvous` serves it, no node.\nPass --external-rdzv on every node"),
        ("by hand: --nnodes 2", True, "a node of a run serves it, not `pretrain rendezvous`.\nLeave out --external"),
    ],
)
def test_nodes_are_told_who_serves(run, is_told, text):
    store = TCPStore(LOCALHOST, 0, is_master=True, wait_for_workers=False)
    store.set(RUN, run)
    with pytest.raises(LaunchError, match=text):
        Rendezvous(Nodes(count=2, rendezvous=f"{LOCALHOST}:{store.port}", rank=1, external=is_told), POLICY)


def test_a_store_serves_one_run_after_the_other(member, monkeypatch):
    first = member()
    assert not member().leads
    first.end(None)
    new = member()
    assert new.leads  # of a new run
    monkeypatch.setattr(leader, "_ABANDONED", 2.0)
    lose(new)
    assert member().leads  # nobody is left of that one


def test_nodes_of_another_command_are_refused(member):
    first = member()
    with pytest.raises(
        LaunchError, match="was started with --nnodes 2 --spares 1 --max-restarts 5 --external-rdzv, this"
    ):
        member(spares=2)
    assert first.leads


NODES = [Arrival(number=n + 1, place=n, ranks=2, host=f"node{n}", launcher=f"launcher {n}", port=1) for n in range(2)]


@pytest.mark.parametrize(
    ("failure", "place"),
    [
        (Failure(rank=3, text="a crash"), 1),
        (Failure(place=0, text="no heartbeat", of_launcher=True), 0),
        (Failure(rank=3, text="no data", exit_code=USER_ERROR), None),
        (Failure(rank=3, text="no device", exit_code=USER_ERROR, passing=True), 1),
        (Failure(rank=3, text="connection closed", lost_peer=True), None),
        (Failure(rank=3, text="rank 1 hangs", of_launcher=True), None),
        (Failure(rank=3, text="SIGTERM", asked=True), None),
    ],
)
def test_a_failure_is_blamed_on_the_node_that_caused_it(failure, place):
    assert culprit(failure, NODES) == place


def test_a_node_is_left_out_after_two_failures_if_another_can_replace_it():
    blame, failure = Blame(), Failure(rank=3, text="a crash")
    assert blame.count(failure, NODES, can_replace=True) == ("", False)
    assert blame.count(Failure(rank=0, text="a crash"), NODES, can_replace=True) == ("", False)
    kept = Blame(**blame.state())  # by another node that leads
    said = "Node 1 (node1) has caused 2 failures"
    assert kept.count(failure, NODES, can_replace=False) == (f"{said}; no other node can take its place.", False)
    assert blame.count(failure, NODES, can_replace=True) == (f"{said} and is left out from now on.", True)
    assert blame.left_out == ["launcher 1"]


def test_a_node_that_is_left_out_waits_and_the_spare_has_its_place(member):
    first, second, third = member(), member(), member()
    begin(first, second)
    first._blame.left_out.append(second._launcher)
    first.settle(CRASHED, lambda _: Decision(wait=0.0))
    assert begin(first, second, third) == [0, None, 1]


def test_the_count_of_restarts_goes_on_on_another_node():
    here, there = (Restarts(POLICY, lambda: RunProgress(saved=None, logged=4)) for _ in range(2))
    here.judge(CRASHED)
    there.restore(here.state())
    assert there.count == 1
    assert "failed twice in the same way" in there.judge(CRASHED).text
    assert there.judge(CRASHED, is_replaced=True).text.startswith("restart 2 of 5")


@pytest.mark.parametrize(("given", "option"), [({"spares": 2}, "--spares 2"), ({"external": True}, "--external-rdzv")])
def test_what_only_a_restart_uses_needs_one(given, option):
    POLICY.require_nodes(2, **given)
    with pytest.raises(LaunchError, match=f"{option} has no effect without restarts"):
        NO_RESTARTS.require_nodes(2, **given)


@pytest.mark.parametrize(("nnodes", "train"), [(None, 3), (3, 3), (4, 4)])
def test_the_nodes_of_a_scheduler_are_those_that_train_and_the_spares(monkeypatch, nnodes, train):
    for name, value in {"NUM_NODES": "4", "NODE_RANK": "3", "NODE_IPS": "10.0.0.1"}.items():
        monkeypatch.setenv(f"SKYPILOT_{name}", value)
    counts = RankCounts(nproc=None, nnodes=nnodes, rdzv=None, node_rank=None)
    _, nodes, _ = place_of_process(counts, spares=1)
    assert (nodes.count, nodes.spares, nodes.rank) == (train, 1, 3)
    with pytest.raises(LaunchError, match="not the address of `pretrain rendezvous`"):
        place_of_process(counts, spares=1, external=True)
    with pytest.raises(LaunchError, match="none is left to train"):
        place_of_process(RankCounts(nproc=None, nnodes=None, rdzv=None, node_rank=None), spares=4)


def test_a_loss_of_the_store_says_what_serves_it():
    nodes = Nodes(count=2, rendezvous="store:29500", external=True)
    text = rendezvous.lost_node_0(nodes, trains=True).text
    assert text.startswith("--rdzv store:29500: `pretrain rendezvous`, which serves the rendezvous, cannot be reached")
