"""Two nodes of a run over several attempts, in one process."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
import threading
from datetime import timedelta

import pytest

from launch.rank_processes import wait_for
from pretrain.errors import LaunchError
from pretrain.exit_codes import End, ExitCode
from pretrain.launch.nodes import attempt, heartbeats, rendezvous, store_client
from pretrain.launch.nodes.attempt import AttemptPlan, NodesAbsent, RunEnded
from pretrain.launch.nodes.heartbeats import Heartbeat
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.nodes.rendezvous import Rendezvous
from pretrain.launch.nodes.reports import signalled_node
from pretrain.launch.nodes.store_client import StoreSilenceError
from pretrain.launch.processes.failure import CRASH, USER_ERROR, Failure
from pretrain.launch.restarts import Decision, RestartPolicy
from pretrain.launch.world import LOCALHOST, free_port

PLAN = AttemptPlan(run_dir="/runs/first", resume=False, holder=("host", 7))
STOP = Failure.of_stop(End(ExitCode.SAVED, "SIGTERM"))
LOST = Failure(rank=0, when=1.0, exit_code=CRASH, text="connection closed", lost_peer=True)


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def first(port):
    return member(port)


def member(port, rank=None, count=2):
    return Rendezvous(Nodes(count=count, rendezvous=f"{LOCALHOST}:{port}", rank=rank), RestartPolicy(limit=3))


def arrive(node):
    """Come to the first attempt."""
    node._enter(0).arrive(node.place, 1, node._launcher)
    return node


def all_of(nodes, _):
    return nodes


@pytest.fixture
def quick(monkeypatch):
    """Signs follow each other quickly."""
    monkeypatch.setattr(heartbeats, "_BEAT", 0.02)
    monkeypatch.setattr(attempt, "_ABSENCE", 2.0)


def begin(first, *others):
    """Let node 0 open an attempt that the others join; return what each of those gets."""
    joined = [[] for _ in others]
    threads = [
        threading.Thread(target=lambda other=other, place=place: place.append(other.join(1)))
        for other, place in zip(others, joined, strict=True)
    ]
    for thread in threads:
        thread.start()
    first.begin(first.meet(1, all_of), PLAN)
    for thread in threads:
        thread.join(30)
    return [place[0] if place else None for place in joined]


def test_nodes_meet_for_each_attempt_on_a_new_port_and_learn_what_node_0_has_decided(first, port):
    second = member(port)
    ports = set()
    for count in range(2):
        ((worlds, plan),) = begin(first, second)
        assert [(world.rank, world.world_size, world.node_rank) for world in worlds] == [(1, 2, 1)]
        assert plan == PLAN
        ports.add(worlds[0].master_port)
        cause = Failure(rank=1, when=1.0, exit_code=CRASH, text=f"bug {count}")
        assert second.report(cause) == cause
        assert first.poll() == cause
        again = Decision(wait=0.0, text="restart")
        assert first.settle(cause, lambda _, again=again: again) == (cause, again)
        assert second.settle(None, None) == (cause, again)  # also where its own ranks saw a consequence, or nothing
    assert len(ports) == 2


def test_node_0_decides_on_the_cause_that_another_node_says_when_it_has_read_the_consequence(first, port, monkeypatch):
    second, seen = member(port), []
    begin(first, second)
    monkeypatch.setattr(rendezvous, "_CAUSE_TIMEOUT", 0.0)
    cause = dataclasses.replace(LOST, rank=1, exit_code=USER_ERROR, text="sample 4711", lost_peer=False)
    threading.Timer(0.3, second.report, [cause]).start()
    assert first.settle(first.report(LOST), lambda failure: seen.append(failure) or Decision()) == (
        cause,
        Decision(),
    )
    assert seen == [cause]


def test_a_node_that_gives_no_sign_is_the_cause_where_ranks_lost_a_peer(first, port, monkeypatch):
    monkeypatch.setattr(attempt, "_ANSWER_TIMEOUT", 0.0)
    second = member(port)
    begin(first, second)
    assert first.settle(LOST, lambda _: Decision())[0] == LOST
    begin(first, second)
    monkeypatch.setattr(attempt, "_SHORT_SILENCE", 0.0)
    failure, _ = first.settle(LOST, lambda _: Decision())
    assert failure.text.startswith("Node 1 (")
    assert not failure.lost_peer


def test_a_node_that_is_silent_for_long_ends_the_attempt(first, port):
    second = member(port)
    begin(first, second)
    assert first.poll() is None
    second._heartbeat.stop()
    second._heartbeat.join()
    assert first.poll() is None
    latest, when = first._watch._seen[second._launcher]
    first._watch._seen[second._launcher] = latest, when - attempt.SILENCE
    assert "has sent no heartbeat" in first.poll().text
    second._heartbeat = Heartbeat(second._store, second._launcher)  # which gives one at once
    assert first.poll() is None


def test_the_loss_of_node_0_is_named_and_ends_the_wait(port, monkeypatch):
    first, second = member(port), member(port)
    begin(first, second)
    del first
    with pytest.raises(RunEnded, match=f"^--rdzv {LOCALHOST}:{port}: node 0, which serves the rendezvous, cannot be"):
        second.settle(LOST, None)
    assert second.settle(None, None) == (None, Decision())
    assert second.poll() is None  # its ranks may be ending
    monkeypatch.setattr(rendezvous, "LOSS_AFTER", -1.0)
    assert "cannot be reached" in second.poll().text


@pytest.mark.usefixtures("quick")
def test_a_launcher_that_was_killed_while_it_waited_is_not_chosen(first, port):
    arrive(member(port))._heartbeat.stop()
    again = arrive(member(port))
    assert [node.launcher for node in first.meet(1, all_of)] == [first._launcher, again._launcher]


@pytest.mark.usefixtures("quick")
def test_two_nodes_with_one_node_rank_are_refused(port):
    first = member(port, 0)
    others = [arrive(member(port, 1)) for _ in range(2)]
    with pytest.raises(RunEnded, match="--node-rank 1 was given on 2 nodes"):
        first.meet(1, all_of)
    del others
    with pytest.raises(LaunchError):
        member(port, 0)


def test_node_0_waits_for_ranks_that_end_later_and_for_their_failure(first, port):
    second = member(port)
    begin(first, second)
    settled = []
    waiting = threading.Thread(target=lambda: settled.append(first.settle(None, lambda _: Decision(wait=1.0))))
    waiting.start()
    late = Failure(rank=1, when=1.0, exit_code=CRASH, text="no memory")
    second.report(late)
    assert second.settle(late, None) == (late, Decision(wait=1.0))
    waiting.join(30)
    assert settled == [(late, Decision(wait=1.0))]


@pytest.mark.parametrize("stop", [None, STOP])
def test_a_node_that_ends_later_than_the_run_does_not_miss_node_0(port, monkeypatch, stop):
    first, second = member(port), member(port)
    begin(first, second)
    first.end(stop)
    assert second.poll() is None
    del first
    monkeypatch.setattr(rendezvous, "LOSS_AFTER", -1.0)
    assert second.poll() is None


def test_node_0_that_does_not_answer_is_lost_after_a_while_though_it_may_come_back(first, port, monkeypatch):
    second, hang = member(port), threading.Event()
    begin(first, second)
    monkeypatch.setattr(store_client, "_PATIENCE", 0.05)
    monkeypatch.setattr(store_client, "_SHORT_PATIENCE", 0.05)
    with pytest.raises(StoreSilenceError):
        second._store._ask(lambda _: hang.wait(30))  # as long as its host is stopped
    assert second.poll() is None
    monkeypatch.setattr(rendezvous, "LOSS_AFTER", 0.0)
    assert "cannot be reached" in second.poll().text
    with pytest.raises(RunEnded, match="cannot be reached"):
        second.settle(LOST, None)
    monkeypatch.undo()
    monkeypatch.setattr(store_client, "_SHORT_PATIENCE", 60.0)  # a busy machine takes longer than users would wait
    hang.set()
    assert second._store.check(["attempt"])
    assert second.poll() is None


@pytest.mark.parametrize("stop", [None, STOP])
def test_a_node_more_than_the_run_needs_waits_for_a_restart_and_the_end_releases_it(first, port, capsys, stop):
    second, third, ended = member(port), member(port), []
    begin(first, second)

    def wait():
        try:
            third.join(1)
        except RunEnded as end:
            ended.append(end.failure)

    thread = threading.Thread(target=wait)
    thread.start()
    said = []
    wait_for(lambda: said.append(capsys.readouterr().err) or any(said), "the spare node's notice")
    assert "the run continues with 2 nodes; this one joins at the next restart" in "".join(said)
    first.end(stop)
    thread.join(30)
    assert ended == [stop]
    third.leave()  # is not taken for a member that node 0 waits for
    assert [first._store.add("gone", 0), first._store.add("spares", 0)] == [0, 0]


def test_nodes_that_do_not_come_are_a_mistake_at_first_and_a_loss_as_any_other_at_a_restart(first, monkeypatch):
    monkeypatch.setattr(attempt, "ARRIVAL_TIMEOUT", timedelta(0))
    for exit_code in (USER_ERROR, CRASH):
        with pytest.raises(NodesAbsent, match="1 of 2 nodes have joined within") as absent:
            first.meet(1, all_of)
        assert (absent.value.failure.exit_code, absent.value.failure.passing) == (exit_code, False)
        assert ("--allow-fewer-nodes" in absent.value.failure.text) == (exit_code == CRASH)


def test_nodes_that_have_come_go_on_to_the_attempt_after_one_that_others_miss(port, monkeypatch):
    first, second = (member(port, count=3) for _ in range(2))
    joined = []
    thread = threading.Thread(target=lambda: joined.append(second.join(1)))
    thread.start()
    monkeypatch.setattr(attempt, "ARRIVAL_TIMEOUT", timedelta(seconds=0.3))
    with pytest.raises(NodesAbsent) as absent:
        first.meet(1, all_of)
    assert first.settle(absent.value.failure, lambda _: Decision(wait=0.0))[1].wait == 0
    monkeypatch.setattr(attempt, "ARRIVAL_TIMEOUT", timedelta(minutes=1))
    third = member(port, count=3)
    begin(first, third)
    thread.join(30)
    assert [plan for _, plan in joined] == [PLAN]
    assert first._attempt.number == 1


@pytest.mark.parametrize("ends", ["join", "settle"])
def test_a_short_silence_of_node_0_costs_only_time(first, port, monkeypatch, ends):
    second = member(port)
    if ends == "settle":
        begin(first, second)
        first._attempt._store.set("verdict", json.dumps([None, {"wait": None, "text": ""}]))
    monkeypatch.setattr(store_client, "_PATIENCE", 0.05)
    monkeypatch.setattr(store_client, "_SHORT_PATIENCE", 0.01)
    resumed = threading.Event()
    with pytest.raises(StoreSilenceError):
        second._store._ask(lambda _: resumed.wait(30))
    threading.Timer(0.3, resumed.set).start()
    if ends == "settle":
        assert second.settle(LOST, None) == (LOST, Decision())
    else:
        assert begin(first, second)[0][1] == PLAN


def test_a_node_whose_launcher_is_lost_after_the_end_is_named_in_a_warning(first, port, monkeypatch, capsys):
    begin(first, member(port))
    monkeypatch.setattr(attempt, "SILENCE", -1.0)
    assert first.settle(None, None) == (None, Decision())
    assert capsys.readouterr().err.startswith("warning: Node 1 (")


@pytest.mark.parametrize("stop", [None, STOP])
def test_only_node_0_knows_that_the_run_ended_well(first, port, stop):
    second = member(port)
    begin(first, second)
    second.end(stop)
    assert not first._store.check(["end"])
    cause = Failure(rank=1, when=1.0, exit_code=CRASH, text="bug")
    assert first.settle(cause, lambda _: Decision()) == (cause, Decision())


def test_a_node_that_takes_no_part_ends_nothing(first, port):
    second, third = member(port), member(port)
    begin(first, second)

    def wait():
        with pytest.raises(RunEnded):
            third.join(1)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_for(lambda: third._spare, "the spare node")
    third.end(signalled_node(third.place, 143))
    assert first.poll() is None
    second.end(signalled_node(second.place, 143))
    assert re.fullmatch(r"Node 1 \(.*\) was asked to end by SIGTERM\.", first.poll().text)
    thread.join(30)


def test_a_node_without_a_place_is_named_by_its_host_alone():
    assert signalled_node(None, 143).text == f"The node on {socket.gethostname()} was asked to end by SIGTERM."
