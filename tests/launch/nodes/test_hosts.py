"""The nodes of a hostfile, started by a pdsh that is a program of the tests; every host is this machine."""

import json
import signal
import subprocess
from types import SimpleNamespace

import pytest

from launch.rank_processes import alive, pids_of_ranks, wait_for
from pretrain.errors import RunError
from pretrain.exit_codes import ExitCode
from pretrain.launch.nodes import hosts, remote_nodes
from pretrain.launch.nodes.hosts import start_hosts
from pretrain.launch.nodes.nodes import Nodes, read_hostfile
from pretrain.launch.nodes.remote_nodes import LauncherMember, RemoteNodes
from pretrain.launch.nodes.rendezvous import Rendezvous
from pretrain.launch.processes.failure import CRASH, USER_ERROR
from pretrain.launch.processes.supervision import supervise
from pretrain.launch.restarts import NO_RESTARTS
from pretrain.launch.world import LOCALHOST, free_port

pytestmark = pytest.mark.usefixtures("forked_python")
on_hosts = pytest.mark.parametrize("launcher", ["hosts"], indirect=True)


def ended(process):
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


def remote(*command, port=None, **environment):
    return RemoteNodes(command, environment, member(port or free_port()))


def member(port):
    return LauncherMember((LOCALHOST, port), ["host-a", "host-b"], "7f")


@pytest.mark.full
@on_hosts
def test_a_known_error_of_one_rank_ends_all_nodes_and_is_shown_once_in_its_words(launcher):
    code, errors = ended(launcher("rank_1_misses_data", 11))  # rank 0 would sleep for ten minutes
    assert (code, errors) == (USER_ERROR, "rank 1: corpus.bin is truncated.\nBuild it again.\n")


@pytest.mark.full
@on_hosts
def test_an_error_that_all_ranks_have_is_shown_once(launcher):
    assert ended(launcher("all_miss_data", 2)) == (USER_ERROR, "corpus.bin is truncated.\nBuild it again.\n")


@on_hosts
def test_a_crash_of_one_rank_shows_its_traceback_alone(launcher):
    code, errors = ended(launcher("rank_1_dies_in_a_collective", 11))
    assert code == CRASH
    assert errors.startswith("rank 1 failed:\nTraceback")
    assert errors.count("Traceback") == 1
    assert errors.endswith("ZeroDivisionError: a bug in rank 1\n")


@pytest.mark.full
@on_hosts
@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("rank_1_is_killed", "killed by SIGKILL"),
        pytest.param("rank_1_exits_without_output", "ended with exit code 7", marks=pytest.mark.full),
    ],
)
def test_a_rank_that_dies_without_a_report_is_named(launcher, train, words):
    code, errors = ended(launcher(train, 11))
    assert code == CRASH
    assert errors.startswith("rank 1 failed:\n")
    assert words in errors


@pytest.mark.full
@on_hosts
def test_what_rank_0_refuses_is_the_reason_on_all_nodes(launcher, recipe_file):
    text = recipe_file.read_text()
    recipe_file.write_text(text.replace("path: corpus", "path: absent"))
    code, errors = ended(launcher("report", 11))
    assert code == USER_ERROR
    assert "absent" in errors
    assert "rank 1" not in errors


@on_hosts
@pytest.mark.parametrize(
    ("sent", "received"),
    [(signal.SIGINT, "SIGINT"), pytest.param(signal.SIGHUP, "SIGTERM", marks=pytest.mark.full)],
    ids=["SIGINT", "SIGHUP"],
)
def test_a_signal_reaches_every_rank_once_and_the_launcher_waits_for_all(launcher, tmp_path, sent, received):
    process = launcher("until_signalled", 11)
    pids_of_ranks(tmp_path / "run")
    process.send_signal(sent)
    assert ended(process) == (ExitCode.SAVED, "")
    assert [json.loads((tmp_path / f"run/{rank}.signals").read_text()) for rank in range(2)] == [[received]] * 2


@pytest.mark.full
@on_hosts
def test_a_second_signal_kills_ranks_that_do_not_exit(launcher, tmp_path):
    process = launcher("ignoring_signals", 11)
    pids = pids_of_ranks(tmp_path / "run")
    process.send_signal(signal.SIGINT)
    for rank in range(2):
        wait_for((tmp_path / f"run/{rank}.heard").exists, "the first signal to be passed on")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, "")
    assert not any(alive(pid) for pid in pids)


@pytest.mark.full
@on_hosts
def test_ranks_that_do_not_handle_signals_yet_end_without_output(launcher, tmp_path):
    process = launcher("importing", 1)  # a single host has a rendezvous with the launcher too
    pids_of_ranks(tmp_path / "run", 1)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "")


def test_a_run_directory_that_is_taken_is_an_error_before_anything_starts(job, programs, tmp_path):
    (tmp_path / "run/recipe.yml").touch()
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    with pytest.raises(RunError, match="already holds a run"):
        start_hosts(read_hostfile(tmp_path / "hosts"), job("report"), None, NO_RESTARTS)


def test_a_signal_before_there_are_nodes_ends_the_launcher(monkeypatch):
    class Interrupted(RemoteNodes):
        def running(self):
            if not self._stop_signal:
                signal.raise_signal(signal.SIGINT)  # `supervise` handles signals when it calls this
            return super().running()

    monkeypatch.setattr(remote_nodes, "_END_TIMEOUT", 0.2)
    with (
        Interrupted(["sleep", "600"], {}, member(free_port())) as nodes,
        pytest.raises(SystemExit) as left,
    ):
        supervise(nodes)
    assert left.value.code == 130
    assert not nodes.running()


def test_the_loss_of_the_node_that_serves_the_rendezvous_is_a_crash_that_ends_the_launcher_program(monkeypatch):
    class Losing(RemoteNodes):
        def running(self):
            if self._member.joined:
                first.clear()
            return super().running()

    port = free_port()
    first = [Rendezvous(Nodes(count=2, rendezvous=f"{LOCALHOST}:{port}", rank=0, run="7f"))]
    monkeypatch.setattr(remote_nodes, "_REJOIN_TIMEOUT", 0.2)
    monkeypatch.setattr(remote_nodes, "_END_TIMEOUT", 0.2)
    monkeypatch.setattr(remote_nodes, "_ORPHANS_TIMEOUT", 0.2)
    with Losing(["sleep", "600"], {}, member(port)) as nodes:
        failure = supervise(nodes)
    assert str(failure).startswith(
        f"--hostfile: host-a, which serves the rendezvous {LOCALHOST}:{port}, cannot be reached any more.\n"
    )
    assert nodes._member.orphaned
    assert failure.exit_code == CRASH  # so that a script that repeats crashes repeats this
    assert not nodes.running()


def test_nothing_runs_where_the_start_fails(monkeypatch, tmp_path):
    def no_thread(_):
        raise RuntimeError("can't start new thread")

    without_program = remote(str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError):
        without_program.__enter__()
    without_program._member.join(10)
    assert not without_program._member.is_alive()
    monkeypatch.setattr(LauncherMember, "start", no_thread)
    without_thread = remote("touch", str(tmp_path / "started"))
    with pytest.raises(RuntimeError, match="new thread"):
        without_thread.__enter__()
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("false", 1)])
def test_a_launcher_that_ends_without_a_report_of_the_nodes_has_failed(command, code):
    with remote(command) as nodes:
        failure = supervise(nodes)
    assert str(failure).startswith(f"{command} ended with exit code {code} before the training was over.")
    assert failure.exit_code == USER_ERROR


def test_a_launcher_that_ends_when_the_nodes_have_met_has_lost_a_host(monkeypatch):
    monkeypatch.setattr(remote_nodes, "_END_TIMEOUT", 0.1)
    with remote("false") as nodes:
        nodes._member.joined = True
        failure = supervise(nodes)
    assert str(failure).startswith("false ended with exit code 1 before the training was over.")
    assert failure.exit_code == CRASH


def test_a_launcher_that_fails_after_the_end_is_no_success():
    with remote("false") as nodes:
        nodes._member.exit_codes = [0, 0]
        assert "exit code 1 after the training was over" in str(supervise(nodes))
    with remote("true") as nodes:
        nodes._member.exit_codes = [0, 0]
        assert supervise(nodes) is None


def test_variables_of_one_host_stay_here_and_those_of_the_backend_go_to_all(
    job, programs, tmp_path, monkeypatch, capsys
):
    class Ended(RemoteNodes):
        def __enter__(self):
            seen.append((next((tmp_path / "run").glob(".variables-*")).read_text(), self._environment))
            raise KeyboardInterrupt

    seen = []
    backend = SimpleNamespace(exported_variables=("TASK_QUEUE", "HCCL"), own_variables=("HCCL_IF_IP", "NOT_SET"))
    monkeypatch.setattr(hosts, "load_alone", lambda _: SimpleNamespace(backend=backend))
    monkeypatch.setattr(remote_nodes, "RemoteNodes", Ended)
    for name in ("TASK_QUEUE_ENABLE", "OTHER", "HCCL_IF_IP", "HCCL_BUFFSIZE"):
        monkeypatch.setenv(name, "1")
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    hosted = read_hostfile(tmp_path / "hosts")
    with pytest.raises(KeyboardInterrupt):
        hosts.run_on_hosts(hosted, job("report"))
    variables, environment = seen[0]
    assert "export TASK_QUEUE_ENABLE=1\n" in variables
    assert "export HCCL_BUFFSIZE=1\n" in variables
    assert not any(f" {name}=" in variables for name in ("OTHER", "HCCL_IF_IP"))
    assert "OTHER" in environment
    assert "HCCL_IF_IP" not in environment
    assert capsys.readouterr().err.splitlines() == [
        "--hostfile does not pass HCCL_IF_IP to the ranks: such values are valid on one host only.",
        "Set it on each host, or in .deepspeed_env if it is the same on all.",
    ]
