"""pdsh's command line and the hosts' addresses, with a program of the tests in place of pdsh."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import threading
from pathlib import Path

import pytest

from launch.rank_processes import alive, pids_of_ranks, wait_for
from pretrain.errors import LaunchError
from pretrain.launch.nodes import pdsh as module
from pretrain.launch.nodes.hosts import run_on_hosts
from pretrain.launch.nodes.nodes import read_hostfile
from pretrain.launch.nodes.pdsh import (
    UnreachedError,
    host_addresses,
    pdsh_command,
    rendezvous_endpoint,
    require_pdsh,
)
from pretrain.launch.processes.failure import CRASH, USER_ERROR

RUN = ["python", "-m", "pretrain", "run", "my recipe.yml", "--set", "model.note='100%n'"]
FILE = Path("/shared/run 1/.variables-x")


@pytest.fixture
def hosts(tmp_path):
    """Writes and reads a hostfile of one text."""

    def written(text):
        path = tmp_path / "hosts"
        path.write_text(text)
        return read_hostfile(path)

    return written


@pytest.fixture
def start(job, programs, monkeypatch):
    """Runs a fake training on the hosts."""

    def started(train, hosts):
        monkeypatch.setenv("FAKE_TRAINING", train)
        return run_on_hosts(hosts, job(train, prepared=False))

    return started


def told(tmp_path, ranks):
    return [json.loads((tmp_path / f"run/{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.full
@pytest.mark.usefixtures("forked_python")
def test_pdsh_starts_the_ranks_of_every_host(start, hosts, programs, tmp_path, monkeypatch):
    monkeypatch.setenv("PRETRAIN_SHARED", "a b's 100%n")
    assert start("report", hosts("host-a slots=1\nhost-b slots=3\n")) is None
    ranks = told(tmp_path, 4)
    places = [[0, 4, 0, 1, 0], [1, 4, 0, 3, 1], [2, 4, 1, 3, 1], [3, 4, 2, 3, 1]]
    assert [rank["world"] for rank in ranks] == places
    assert {rank["environ"]["MASTER_ADDR"] for rank in ranks} == {"127.0.0.1"}  # what `hostname -I` says
    assert {rank["variables"]["PRETRAIN_SHARED"] for rank in ranks} == {"a b's 100%n"}
    assert len({rank["variables"]["PRETRAIN_COMMAND"] for rank in ranks}) == 1
    assert {rank["run_dir"] for rank in ranks} == {str(tmp_path / "run")}
    assert all(int(rank["environ"]["OMP_NUM_THREADS"]) >= 1 for rank in ranks)
    assert programs()[:7] == ["-R", "ssh", "-S", "-f", "1024", "-w", "host-a,host-b"]
    assert programs()[7].startswith(f"cd {tmp_path} && sh -c ")
    assert "a b" not in programs()[7]
    assert list((tmp_path / "run").glob(".variables-*")) == []


@pytest.mark.full
@pytest.mark.slow
def test_the_shells_of_the_hosts_set_the_variables(start, hosts, tmp_path, monkeypatch):
    """The tests above leave out the shell, since they fork the nodes."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("PRETRAIN_SHARED", "a b's 100%n")
    assert start("report", hosts("host-b slots=1\nhost-a slots=1\n")) is None
    assert {rank["variables"]["PRETRAIN_SHARED"] for rank in told(tmp_path, 2)} == {"a b's 100%n"}


@pytest.mark.full
@pytest.mark.usefixtures("forked_python")
def test_a_crash_of_one_rank_ends_those_of_all_hosts(start, hosts, tmp_path, capfd):
    failure = start("rank_1_crashes", hosts("host-a slots=1\nhost-b slots=1\n"))
    assert failure.exit_code == CRASH
    assert str(failure).startswith("rank 1 failed:\nTraceback")
    assert not any(alive(pid) for pid in pids_of_ranks(tmp_path / "run"))
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.full
@pytest.mark.usefixtures("forked_python")
def test_an_error_of_one_node_before_its_ranks_ends_all_and_names_the_host(start, hosts, job, programs):
    failure = run_on_hosts(hosts("host-a slots=1\nhost-b slots=1\n"), job("report", overrides=("model.nonsense=1",)))
    assert failure.exit_code == USER_ERROR
    assert str(failure).startswith(f"{socket.gethostname()}: ")
    assert "model.nonsense" in str(failure)


def test_hosts_that_refuse_ssh_are_named_in_its_words_before_anything_starts(start, hosts, programs, monkeypatch):
    monkeypatch.setenv("FAKE_UNREACHABLE", "node-2.cluster,node-3")
    with pytest.raises(UnreachedError) as raised:
        start("report", hosts("node-1 slots=1\nme@node-2.cluster slots=1\nnode-3 slots=1\n"))
    refused = "port 22: Connection refused)"
    assert str(raised.value) == (
        f"--hostfile: ssh does not reach me@node-2.cluster (ssh: connect to host node-2.cluster {refused}, "
        f"node-3 (ssh: connect to host node-3 {refused}.\n"
        "ssh must reach every host without a password: try `ssh me@node-2.cluster true`."
    )
    assert raised.value.hosts == ("me@node-2.cluster", "node-3")
    assert programs()[-1].startswith("echo ")


def test_a_host_that_does_not_answer_is_named_too(start, hosts, programs, monkeypatch):
    monkeypatch.setattr("pretrain.launch.nodes.pdsh._TIMEOUT", 1.0)
    monkeypatch.setenv("FAKE_SILENT", "node-2")
    with pytest.raises(UnreachedError) as raised:
        start("report", hosts("node-1 slots=1\nnode-2 slots=1\n"))
    assert "node-2 (no answer)" in str(raised.value)


def test_a_program_that_is_missing_is_named_with_the_ways_out(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError) as raised:
        require_pdsh()
    first, second = str(raised.value).splitlines()
    assert first == "--hostfile: not on the PATH: pdsh, ssh."
    assert "package" in second
    assert "--nnodes and --rdzv" in second


@pytest.mark.usefixtures("programs")
def test_where_all_is_installed_pdsh_can_be_called():
    require_pdsh()


def test_pdsh_gets_arguments_quoted_for_its_shells(hosts):
    script = pdsh_command(hosts("a slots=2\n"), RUN, FILE)[-1]
    words = shlex.split(script.replace("%%", "%"))
    assert words[words.index("sh") + 3] == str(FILE)
    assert words[-len(RUN) - 2 :] == [*RUN, "--node-rank", "%n"]
    assert script.count("%n") - script.count("%%n") == 1


@pytest.mark.usefixtures("programs")
def test_each_restart_has_a_port_of_its_own_unless_the_user_has_set_one(hosts):
    both, given = hosts("a slots=1\nb slots=1\n"), {"MASTER_PORT": "4242"}
    assert [rendezvous_endpoint(both, given, attempt)[1] for attempt in range(3)] == [4242] * 3
    assert len({rendezvous_endpoint(both, {}, attempt)[1] for attempt in range(3)}) == 3


@pytest.mark.usefixtures("programs")
def test_an_address_of_a_host_that_was_lost_does_not_count(hosts):
    three, given = hosts("a slots=1\nb slots=1\nc slots=1\n"), {"MASTER_ADDR": "address-of-a"}
    assert rendezvous_endpoint(three.without(["b"]), given)[0] == "address-of-a"
    assert rendezvous_endpoint(three.without(["a"]), given)[0] == "127.0.0.1"
    assert rendezvous_endpoint(three.without(["a"]).without(["c"]), given)[0] == "127.0.0.1"


def test_pdsh_asks_the_first_host_for_its_address_unless_it_is_given(hosts, programs):
    assert rendezvous_endpoint(hosts("a slots=2\n"), {})[0] == "127.0.0.1"
    assert programs()[-1] == "echo pretrain-node %n $(hostname -I)"
    assert rendezvous_endpoint(hosts("a slots=2\n"), {"MASTER_ADDR": "10.0.0.1"})[0] == "10.0.0.1"


@pytest.mark.parametrize(("port", "words"), [("x", "is 'x'"), ("0", "is 0; a port"), ("65536", "is 65536; a port")])
def test_what_is_no_port_is_an_error(hosts, port, words):
    with pytest.raises(LaunchError, match=f"MASTER_PORT {words}"):
        rendezvous_endpoint(hosts("a slots=2\n"), {"MASTER_PORT": port})


PDSH = """
[ "$0" = -b ] && trap 'kill $ssh; exit 1' INT
setsid sleep 600 > /dev/null 2>&1 & ssh=$!
echo $ssh > pid
echo pretrain-node 0 10.9.9.9
wait
"""
"""A pdsh whose second ssh gets no answer; pdsh gives each a session of its own, and with -b ends them on SIGINT."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ssh(folder):
    return int((folder / "pid").read_text())


def test_a_host_that_is_silent_is_named_and_no_ssh_is_left(folder, monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT", 1.0)
    with pytest.raises(UnreachedError, match=r"does not reach b \(no answer\)"):
        host_addresses(["sh", "-c", PDSH], ["a", "b"])
    wait_for(lambda: not alive(ssh(folder)), "the end of ssh")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_hosts_are_asked_leaves_no_ssh(folder, number):
    def stop():
        wait_for(lambda: (folder / "pid").exists() and (folder / "pid").read_text(), "ssh")
        os.kill(os.getpid(), number)

    def ask():
        thread.start()
        try:
            host_addresses(["sh", "-c", PDSH], ["a", "b"])
        finally:
            thread.join()

    thread = threading.Thread(target=stop)
    before = signal.signal(number, signal.default_int_handler)  # nohup ignores SIGHUP, and a signal ends no test run
    try:
        with pytest.raises(SystemExit, match=str(128 + number)):
            ask()
    finally:
        signal.signal(number, before)
    wait_for(lambda: not alive(ssh(folder)), "the end of ssh")
