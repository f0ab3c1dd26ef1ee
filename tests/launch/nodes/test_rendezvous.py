"""A node of a hostfile and its launcher, in one process."""

import dataclasses
import signal
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
from torch.distributed import DistError, TCPStore

from launch.rank_processes import wait_for
from pretrain.errors import LaunchError, RecipeError
from pretrain.launch.node_attempts import run_node_of_hostfile
from pretrain.launch.nodes import attempt, joining, remote_nodes, store_client
from pretrain.launch.nodes import rendezvous as module
from pretrain.launch.nodes.attempt import RunEnded
from pretrain.launch.nodes.joining import RUN, is_of_run
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.nodes.remote_nodes import LauncherMember
from pretrain.launch.nodes.rendezvous import Rendezvous
from pretrain.launch.nodes.reports import lost_node_0, signalled_node
from pretrain.launch.processes.failure import CRASH, USER_ERROR, Failure
from pretrain.launch.restarts import RestartPolicy
from pretrain.launch.world import LOCALHOST, free_port


@pytest.mark.parametrize(("trains", "resume"), [(True, ", with --resume auto"), (False, "")])
def test_the_loss_of_node_0_says_which_command_to_give_again(trains, resume):
    text = lost_node_0(Nodes(count=2, rendezvous="node0:29500"), trains=trains).text
    assert text.startswith("--rdzv node0:29500: node 0, which serves the rendezvous, cannot be reached any more from ")
    assert text.endswith(f"\nIt cannot be replaced: give the command again on all nodes{resume}.")


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def node(port):
    return Rendezvous(Nodes(count=1, rendezvous=f"{LOCALHOST}:{port}", rank=0, run="7f"))


@pytest.fixture
def launcher(port):
    with running(LauncherMember((LOCALHOST, port), ["host-a"], "7f")) as member:
        yield member


@contextmanager
def running(member):
    member.start()
    yield member
    member.close()
    member.join(10)


def test_a_node_does_not_start_without_its_launcher(node, monkeypatch):
    monkeypatch.setattr(module, "_LAUNCHER_TIMEOUT", timedelta(seconds=0))
    with pytest.raises(LaunchError, match=r"did not join the rendezvous 127.0.0.1:.*\nSet MASTER_ADDR"):
        node.wait_for_launcher()


def test_the_launcher_reads_the_failure_and_the_exit_code_before_the_node_leaves(node, launcher):
    node.wait_for_launcher()
    failure = Failure(rank=1, when=1.0, exit_code=USER_ERROR, text="no data")
    assert node.report(failure) == failure
    node.leave(USER_ERROR)
    assert (launcher.failure, launcher.exit_codes) == (failure, [USER_ERROR])


def end_in(error, port):
    """Run a node of a hostfile whose placement cannot be made."""

    def placement():
        raise error

    nodes = Nodes(count=1, rendezvous=f"{LOCALHOST}:{port}", rank=0, run="7f")
    with kept_signal_handlers():
        return run_node_of_hostfile(nodes, placement, None)


@contextmanager
def kept_signal_handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("launcher")
def test_a_failure_that_the_launcher_has_read_is_not_shown_by_the_node(port):
    assert end_in(RecipeError("no layers"), port) is None


@pytest.mark.parametrize("ended", ["before it joins", "later"])
def test_a_failure_without_a_launcher_is_shown_by_the_node(port, monkeypatch, ended):
    monkeypatch.setattr(module, "_LAUNCHER_TIMEOUT", timedelta(0))
    monkeypatch.setattr(module, "_READ_TIMEOUT", 0.1)
    monkeypatch.setattr(module, "_LEAVE_TIMEOUT", 0.0)
    if ended == "later":
        monkeypatch.setattr(Rendezvous, "wait_for_launcher", lambda _: None)
    words = "no layers" if ended == "later" else "the launcher did not join"
    assert words in str(end_in(RecipeError("no layers"), port))


def test_a_host_that_sends_no_word_is_a_failure_that_names_it(port, monkeypatch):
    monkeypatch.setattr(remote_nodes, "HOSTFILE_TIMEOUT", timedelta(0))
    node = Rendezvous(Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=0, run="7f"))
    with running(LauncherMember((LOCALHOST, port), ["host-a", "host-b"], "7f")) as launcher:
        wait_for(lambda: launcher.failure, "the launcher's patience to end")
        said = "--hostfile: host-b did not join within 0 s.\nThe output above may say why"
        assert str(launcher.failure).startswith(said)
        assert launcher.failure.exit_code == USER_ERROR
    assert node.poll() is None


def test_hosts_that_are_late_are_named_before_the_run_ends(port, monkeypatch, capsys):
    monkeypatch.setattr(remote_nodes, "_NOTICE_AFTER", 0.0)
    nodes = [Rendezvous(Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=0, run="7f"))]
    came, said = [], []
    member = LauncherMember((LOCALHOST, port), ["host-a", "host-b"], "7f", all_came=lambda: came.append(1))
    with running(member) as launcher:
        wait_for(lambda: said.append(capsys.readouterr().err) or any(said), "the notice")
        assert "".join(said) == "--hostfile: host-b did not join within 0 s; the run ends after 300 s.\n"
        assert not came
        nodes.append(Rendezvous(Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=1, run="7f")))
        wait_for(lambda: came, "the launcher to notice")
    assert came == [1]
    assert launcher.failure is None


def test_a_broken_connection_of_the_launcher_is_made_again(node, port):
    class Disconnected(LauncherMember):
        breaks = 1

        def _exchange(self, store):
            if self.breaks:
                self.breaks -= 1
                raise DistError("Connection reset by peer")
            super()._exchange(store)

    with running(Disconnected((LOCALHOST, port), ["host-a"], "7f")) as launcher:
        node.leave(0)
        wait_for(lambda: launcher.exit_codes, "the exit code")
    assert launcher.failure is None


def test_a_node_that_joins_has_patience_with_a_busy_store(port, monkeypatch):
    monkeypatch.setattr(store_client, "_PATIENCE", 0.0)
    monkeypatch.setattr(store_client, "_SHORT_PATIENCE", 0.0)
    nodes = [Rendezvous(Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}")) for _ in range(2)]
    assert [node.place for node in nodes] == [0, None]


def test_only_the_serving_node_says_whose_rendezvous_it_is(port):
    store = TCPStore(LOCALHOST, port, is_master=True, wait_for_workers=False)
    store.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(DistError):
        is_of_run(store, "80")
    assert not store.check([RUN])


@pytest.mark.parametrize("run", ["80", ""], ids=["of another hostfile", "by hand"])
def test_a_node_of_another_run_at_the_same_port_is_refused(node, port, run):
    used = rf"--rdzv {LOCALHOST}:{port}: another run uses this address\.\nWait until it ends, or"
    with pytest.raises(LaunchError, match=used):
        Rendezvous(Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=1, run=run))


def test_a_launcher_of_another_run_at_the_same_port_fails(node, port):
    with running(LauncherMember((LOCALHOST, port), ["host-a"], "80")) as launcher:
        wait_for(lambda: launcher.failure, "the failure")
        assert str(launcher.failure).startswith(f"--rdzv {LOCALHOST}:{port}: another run uses this address.")
        assert not launcher.joined


def test_two_names_of_one_machine_are_an_error_where_ranks_take_devices(port):
    nodes = [Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=rank, run="7f") for rank in range(2)]
    first, second = map(Rendezvous, nodes)
    first.require_own_machine()
    with pytest.raises(LaunchError, match=r"hosts 1 and 2 of the hostfile are one machine, .*\nGive it one line"):
        second.require_own_machine()


@pytest.fixture
def got():
    """Signals to this process; SIGUSR1 stands for one that asks for the end."""
    signals = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: signals.append(number))
    yield signals
    signal.signal(signal.SIGUSR1, before)


def test_a_stop_request_becomes_that_signal_once_and_a_second_one_the_end(node, launcher, got):
    launcher.stop_nodes(signal.SIGUSR1, 1)
    wait_for(lambda: node.poll() or got, "the signal")
    assert node.poll() is None
    assert got == [signal.SIGUSR1]
    launcher.stop_nodes(signal.SIGUSR1, 2)
    with pytest.raises(SystemExit) as ended:
        wait_for(node.poll, "the end")
    assert ended.value.code == 128 + signal.SIGUSR1
    node.leave()


def test_a_node_that_a_scheduler_has_signalled_too_is_not_signalled_again(node, launcher, got):
    node.asked_to_stop = True
    launcher.stop_nodes(signal.SIGUSR1, 1)
    wait_for(lambda: node._store.check(["stop"]), "the request")
    assert (node.poll(), got) == (None, [])
    node.leave()


def test_a_request_for_a_report_or_a_profile_reaches_the_nodes_once_each_time(node, launcher):
    assert not node.requests.came()
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1):
        launcher.ask(number)
        came = []
        wait_for(lambda: came.extend(node.requests.came()) or came, "the request")  # noqa: B023  called here
        assert came == [number]
        assert not node.requests.came()
    node.requests.ask(signal.SIGUSR2)
    assert node.requests.came() == [signal.SIGUSR2]
    assert not node.requests.came()
    node.leave()


def test_a_first_host_that_does_not_come_to_a_restart_is_named(port):
    with running(LauncherMember((LOCALHOST, port), ["host-a", "host-b"], "7f", patience=0.1)) as launcher:
        wait_for(lambda: launcher.failure, "the launcher's patience to end")
    assert launcher.failure.absent == ("host-a",)


def test_nodes_with_different_commands_are_refused(port):
    nodes = [Nodes(count=count, rendezvous=f"{LOCALHOST}:{port}", rank=rank) for rank, count in enumerate((2, 2, 3))]
    first = Rendezvous(nodes[0], RestartPolicy(limit=3))
    with pytest.raises(
        LaunchError,
        match=r"the first node was started with --nnodes 2 --max-restarts 3, this one with --nnodes 2 --max",
    ):
        Rendezvous(nodes[1])
    with pytest.raises(LaunchError, match="Give the same command on every node"):
        Rendezvous(nodes[2], RestartPolicy(limit=3))
    with pytest.raises(LaunchError, match="this one with --nnodes 2 --max-restarts 3 --allow-fewer-nodes 1"):
        Rendezvous(nodes[1], RestartPolicy(limit=3, fewest_nodes=1))
    del first


def test_a_failure_of_another_node_ends_the_wait_for_all(port):
    first, second = (Rendezvous(Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=rank)) for rank in range(2))
    second.end(Failure(rank=0, when=1.0, exit_code=USER_ERROR, text="node1: no device"))
    with pytest.raises(RunEnded, match="node1: no device"):
        first.meet(1, None)


def test_a_cause_replaces_the_consequence_that_was_reported_before_it_and_nothing_else_does(port):
    first, second = (Rendezvous(Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=rank)) for rank in range(2))
    lost = Failure(rank=1, when=1.0, exit_code=CRASH, text="connection closed", lost_peer=True)
    assert second._attempt.reports.keep(lost) == lost
    cause = Failure(rank=0, when=2.0, exit_code=USER_ERROR, text="no data")
    assert first.report(cause) == first.poll() == second.poll() == cause
    later = Failure(rank=1, when=3.0, exit_code=CRASH, text="SIGABRT")
    assert second.report(later) == cause
    asked = dataclasses.replace(later, asked=True)
    assert second.report(asked) == first.poll() == asked


def test_a_node_of_a_hostfile_that_misses_the_first_host_for_a_while_ends_its_ranks(port, monkeypatch):
    nodes = [Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=rank, run="7f") for rank in range(2)]
    first, second = map(Rendezvous, nodes)
    assert second.poll() is None
    del first
    assert second.poll() is None  # its ranks may be ending, and it may come back
    monkeypatch.setattr(module, "LOSS_AFTER", -1.0)
    first_line, remedy = second.poll().text.splitlines()
    lost = f"--hostfile: the first host, {LOCALHOST}, which serves the rendezvous, cannot be reached"
    assert first_line.startswith(lost)
    assert remedy == "Give the command again, with --resume auto."
    second._over = True
    assert second.poll() is None


def test_a_first_host_that_has_ended_well_is_not_missed(port, monkeypatch):
    nodes = [Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=rank, run="7f") for rank in range(2)]
    first, second = map(Rendezvous, nodes)
    monkeypatch.setattr(module, "_LEAVE_TIMEOUT", 0.0)
    first.leave(0)
    assert second.poll() is None
    del first
    monkeypatch.setattr(module, "LOSS_AFTER", -1.0)
    assert second.poll() is None


def test_the_launcher_learns_a_cause_that_is_known_later_than_its_consequence(node, launcher, monkeypatch):
    monkeypatch.setattr(module, "_CAUSE_TIMEOUT", 0.0)
    hang = Failure(rank=0, when=2.0, exit_code=CRASH, text="hang", lost_peer=True)
    node.report(hang)
    wait_for(lambda: launcher.failure, "the consequence")
    cause = dataclasses.replace(hang, exit_code=USER_ERROR, text="sample 4711", lost_peer=False)
    node.report(cause)
    wait_for(lambda: launcher.failure == cause, "the cause")
    ended = dataclasses.replace(cause, text="SIGTERM", asked=True)
    assert launcher._better(ended) == cause
    launcher.failure = hang
    assert launcher._better(ended) == hang  # the launcher itself has asked for that


def test_what_a_rank_has_told_explains_the_hang_of_another_node_and_ends_nothing_itself(port):
    first, second = (Rendezvous(Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=rank)) for rank in range(2))
    cause = Failure(rank=1, when=1.0, exit_code=USER_ERROR, text="sample 4711")
    hang = Failure(rank=0, when=2.0, exit_code=CRASH, text="hang", lost_peer=True)
    second.tell([dataclasses.replace(hang, rank=1), cause])
    assert (first.poll(), second.poll()) == (None, None)
    assert first.report(hang) == first.poll() == second.poll() == cause


def test_a_port_that_a_node_of_an_attempt_before_still_has_is_waited_for(port, monkeypatch):
    lingering = [Rendezvous(Nodes(count=1, rendezvous=f"{LOCALHOST}:{port}", rank=0, run="80"))]
    timer = threading.Timer(0.5, lingering.clear)
    timer.start()
    with running(LauncherMember((LOCALHOST, port), ["host-a"], "7f", at_restart=True)) as launcher:
        node = Rendezvous(Nodes(count=1, rendezvous=f"{LOCALHOST}:{port}", rank=0, run="7f"))
        node.wait_for_launcher()
        assert launcher.failure is None
        node.leave()
    monkeypatch.setattr(joining, "LINGERING", 0.0)
    with pytest.raises(LaunchError, match="the rendezvous failed"):
        Rendezvous(Nodes(count=1, rendezvous=f"{LOCALHOST}:{port}", rank=0, run="80"))
    monkeypatch.setattr(remote_nodes, "LINGERING", 0.0)
    with running(LauncherMember((LOCALHOST, port), ["host-a"], "80", at_restart=True)) as launcher:
        wait_for(lambda: launcher.failure, "the failure")
    assert launcher.failure.passing


def test_a_signal_ends_the_wait_for_the_node_that_serves_the_rendezvous(port):
    def end(*_):
        raise SystemExit(130)

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(SystemExit):
            Rendezvous(Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=1), RestartPolicy(limit=3))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_node_too_many_is_refused_in_a_run_without_restarts_and_ends_nothing(port):
    first, second, third = (Rendezvous(Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}")) for _ in range(3))
    joined = []
    thread = threading.Thread(target=lambda: joined.append(second.join(1)))
    thread.start()
    first.begin(first.meet(1, lambda nodes, _: nodes))
    thread.join(30)
    with pytest.raises(LaunchError, match=r"all 2 nodes have joined already\.\nGive each node the same --nnodes"):
        third.join(1)
    third.end(Failure(rank=0, when=1.0, exit_code=USER_ERROR, text="too many"))
    third.leave()
    assert [len(worlds) for worlds, _ in joined] == [1]
    assert (first.poll(), second.poll()) == (None, None)
    assert [first._store.add("gone", 0), first._store.add("spares", 0)] == [0, 0]


def test_a_failure_after_the_end_of_node_0_reaches_the_others_in_a_run_without_restarts(port):
    nodes = [Nodes(count=3, rendezvous=f"{LOCALHOST}:{port}", rank=rank) for rank in range(3)]
    first, second, third = map(Rendezvous, nodes)
    first.end(None)
    assert third.poll() is None
    late = Failure(rank=1, when=1.0, exit_code=CRASH, text="no memory")
    second.report(late)
    assert third.poll() == late


def test_a_node_that_leaves_before_it_has_arrived_is_not_taken_for_a_member_that_has_read_the_failure(port):
    first, second = (Rendezvous(Nodes(count=3, rendezvous=f"{LOCALHOST}:{port}", rank=rank)) for rank in range(2))
    second.leave()
    assert first._store.add("gone", 0) == 0


def test_a_surplus_node_that_is_signalled_before_the_attempt_begins_ends_nothing(port):
    first, second, third = (Rendezvous(Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}")) for _ in range(3))
    for node in (first, second, third):
        node._enter(0)
        node._arrive(1)
    assert (first._spare, second._spare, third._spare) == (False, False, True)
    third.end(signalled_node(third.place, 130))
    third.leave()
    assert (first.poll(), second.poll()) == (None, None)
    assert [first._store.add("gone", 0), first._store.add("spares", 0)] == [0, 0]
    second.end(signalled_node(second.place, 130))
    assert first.poll().asked


def test_a_node_does_not_wait_for_others_without_end_in_a_run_without_restarts(port, monkeypatch):
    monkeypatch.setattr(attempt, "ARRIVAL_TIMEOUT", timedelta(seconds=0.2))
    monkeypatch.setattr(module, "LOSS_AFTER", 0.1)
    nodes = [Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=rank) for rank in range(2)]
    first, second = map(Rendezvous, nodes)
    with pytest.raises(LaunchError, match=r"not all 2 nodes have joined within 0:00:00\.3"):
        second.join(1)  # node 0 opens nothing
    del first
