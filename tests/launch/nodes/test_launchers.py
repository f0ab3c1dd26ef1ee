"""The launchers' command lines, with programs of the tests in place of pdsh, ssh, mpirun and srun."""

import json
import shlex
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.rank_processes import alive, pids_of_ranks
from pretrain.errors import LaunchError
from pretrain.launch.hosts import run_on_hosts
from pretrain.launch.nodes.exported_variables import exported_variables
from pretrain.launch.nodes.host_addresses import UnreachedError
from pretrain.launch.nodes.hostfile import read_hostfile
from pretrain.launch.nodes.launchers import LAUNCHERS, Hosted
from pretrain.launch.nodes.node_command import node_rank
from pretrain.launch.processes.failure import CRASH, USER_ERROR

RUN = ["python", "-m", "pretrain", "run", "my recipe.yml", "--set", "model.note='100%n'"]
FILE = Path("/shared/run 1/.variables-x")


@pytest.fixture
def hosted(tmp_path):
    """Writes a hostfile of one text."""

    def written(text, launcher="pdsh"):
        path = tmp_path / "hosts"
        path.write_text(text)
        return Hosted(hosts=read_hostfile(path), launcher=launcher)

    return written


@pytest.fixture
def start(job, programs, monkeypatch):
    """Runs a fake training on the hosts."""

    def started(train, hosted):
        monkeypatch.setenv("FAKE_TRAINING", train)
        return run_on_hosts(hosted, job(train, prepared=False))

    return started


def told(tmp_path, ranks):
    return [json.loads((tmp_path / f"run/{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.usefixtures("forked_python")
def test_pdsh_starts_the_ranks_of_every_host(start, hosted, programs, tmp_path, monkeypatch):
    monkeypatch.setenv("PRETRAIN_SHARED", "a b's 100%n")
    assert start("report", hosted("host-a slots=1\nhost-b slots=3\n")) is None
    ranks = told(tmp_path, 4)
    places = [[0, 4, 0, 1, 0], [1, 4, 0, 3, 1], [2, 4, 1, 3, 1], [3, 4, 2, 3, 1]]
    assert [rank["world"] for rank in ranks] == places
    assert {rank["environ"]["MASTER_ADDR"] for rank in ranks} == {"127.0.0.1"}  # what `hostname -I` says
    assert {rank["variables"]["PRETRAIN_SHARED"] for rank in ranks} == {"a b's 100%n"}
    assert len({rank["variables"]["PRETRAIN_COMMAND"] for rank in ranks}) == 1
    assert {rank["run_dir"] for rank in ranks} == {str(tmp_path / "run")}
    assert all(int(rank["environ"]["OMP_NUM_THREADS"]) >= 1 for rank in ranks)
    assert programs("pdsh")[:7] == ["-R", "ssh", "-S", "-f", "1024", "-w", "host-a,host-b"]
    assert programs("pdsh")[7].startswith(f"cd {tmp_path} && sh -c ")
    assert "a b" not in programs("pdsh")[7]
    assert list((tmp_path / "run").glob(".variables-*")) == []


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("launcher", ["openmpi", "slurm"])
def test_mpirun_and_srun_start_the_nodes_in_the_hostfiles_order(start, hosted, tmp_path, monkeypatch, launcher):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert start("report", hosted("host-b slots=1\nhost-a slots=3 max_slots=3\n", launcher)) is None
    places = [[0, 4, 0, 1, 0], [1, 4, 0, 3, 1], [2, 4, 1, 3, 1], [3, 4, 2, 3, 1]]
    assert [rank["world"] for rank in told(tmp_path, 4)] == places


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["pdsh", "openmpi", "slurm"])
def test_the_shells_of_the_hosts_set_the_variables(start, hosted, tmp_path, monkeypatch, launcher):
    """The tests above leave out the shell, since they fork the nodes."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("PRETRAIN_SHARED", "a b's 100%n")
    assert start("report", hosted("host-b slots=1\nhost-a slots=1\n", launcher)) is None
    assert {rank["variables"]["PRETRAIN_SHARED"] for rank in told(tmp_path, 2)} == {"a b's 100%n"}


@pytest.mark.usefixtures("forked_python")
def test_a_crash_of_one_rank_ends_those_of_all_hosts(start, hosted, tmp_path, capfd):
    failure = start("rank_1_crashes", hosted("host-a slots=1\nhost-b slots=1\n"))
    assert failure.exit_code == CRASH
    assert str(failure).startswith("rank 1 failed:\nTraceback")
    assert not any(alive(pid) for pid in pids_of_ranks(tmp_path / "run"))
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.usefixtures("forked_python")
def test_an_error_of_one_node_before_its_ranks_ends_all_and_names_the_host(start, hosted, job, programs):
    failure = run_on_hosts(hosted("host-a slots=1\nhost-b slots=1\n"), job("report", overrides=("model.nonsense=1",)))
    assert failure.exit_code == USER_ERROR
    assert str(failure).startswith(f"{socket.gethostname()}: ")
    assert "model.nonsense" in str(failure)


def test_hosts_that_refuse_ssh_are_named_in_its_words_before_anything_starts(start, hosted, programs, monkeypatch):
    monkeypatch.setenv("FAKE_UNREACHABLE", "node-2.cluster,node-3")
    with pytest.raises(UnreachedError) as raised:
        start("report", hosted("node-1 slots=1\nme@node-2.cluster slots=1\nnode-3 slots=1\n"))
    refused = "port 22: Connection refused)"
    assert str(raised.value) == (
        f"--launcher pdsh: ssh does not reach me@node-2.cluster (ssh: connect to host node-2.cluster {refused}, "
        f"node-3 (ssh: connect to host node-3 {refused}.\n"
        "ssh must reach every host without a password: try `ssh me@node-2.cluster true`."
    )
    assert raised.value.hosts == ("me@node-2.cluster", "node-3")
    assert programs("pdsh")[-1].startswith("echo ")


def test_a_host_that_does_not_answer_is_named_too(start, hosted, programs, monkeypatch):
    monkeypatch.setattr("pretrain.launch.nodes.host_addresses._TIMEOUT", 1.0)
    monkeypatch.setenv("FAKE_SILENT", "node-2")
    with pytest.raises(UnreachedError) as raised:
        start("report", hosted("node-1 slots=1\nnode-2 slots=1\n"))
    assert "node-2 (no answer)" in str(raised.value)


@pytest.mark.parametrize(
    ("launcher", "missing", "remedy"),
    [("pdsh", "pdsh, ssh", "package"), ("openmpi", "mpirun", "openmpi-bin"), ("slurm", "srun", "Slurm")],
)
def test_a_program_that_is_missing_is_named_with_the_ways_out(hosted, monkeypatch, tmp_path, launcher, missing, remedy):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError) as raised:
        hosted("a slots=2\n", launcher).require()
    first, second = str(raised.value).splitlines()
    assert first == f"--launcher {launcher}: not on the PATH: {missing}."
    assert remedy in second
    assert all(f"--launcher {other}" in second for other in LAUNCHERS if other != launcher)
    assert "--nnodes and --rdzv" in second


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_where_all_is_installed_the_launcher_can_be_called(hosted, programs, launcher):
    hosted("a slots=2\n", launcher).require()


def test_mpirun_has_a_context_for_each_host(hosted):
    words = hosted("a slots=2\nb slots=4\n", "openmpi").command(RUN, FILE, {})
    assert words[:9] == ["mpirun", "--bind-to", "none", "-n", "1", "-host", "a", "sh", "-c"]
    second = words[words.index(":") + 1 :]
    assert second[:6] == ["-n", "1", "-host", "b", "sh", "-c"]
    assert second[7] == str(FILE)
    assert second[-len(RUN) - 2 :] == ["1", "2,4", *RUN]


def test_srun_asks_for_cores_outside_of_an_allocation_alone(hosted):
    by_slurm = hosted("a slots=2\nb slots=4\n", "slurm")
    outside, inside = (by_slurm.command(RUN, FILE, environ) for environ in ({}, {"SLURM_JOB_ID": "7"}))
    assert outside[:5] == ["srun", "--ntasks=2", "--nodes=2", "--ntasks-per-node=1", "--nodelist=a,b"]
    assert set(outside) - set(inside) == {"--cpus-per-task=4"}
    assert inside[-len(RUN) - 2 :] == ["slurm=a,b", "2,4", *RUN]


def test_a_node_of_srun_finds_its_number_by_its_name():
    environ = {"SLURM_STEP_NODELIST": "gpu[1-2]", "SLURM_NODEID": "1"}
    assert node_rank("slurm=gpu2,gpu1", environ) == 0
    with pytest.raises(LaunchError, match=r"srun started gpu2; the hostfile has a, b\.\nWrite the names"):
        node_rank("slurm=a,b", environ)
    assert node_rank("3", {}) == 3


def test_pdsh_gets_arguments_quoted_for_its_shells(hosted):
    script = hosted("a slots=2\n").command(RUN, FILE, {})[-1]
    words = shlex.split(script.replace("%%", "%"))
    assert words[words.index("sh") + 3] == str(FILE)
    assert words[-len(RUN) - 2 :] == ["%n", "2", *RUN]
    assert script.count("%n") - script.count("%%n") == 1


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("node1 slots=2\nnode2 slots=2\n", "node1"),
        ("me@node1 slots=2\nnode2 slots=2\n", "node1"),
        ("localhost slots=2\n", "localhost"),
        ("localhost slots=2\nnode2 slots=2\n", socket.gethostname()),
        ("127.0.0.1 slots=2\nnode2 slots=2\n", socket.gethostname()),
    ],
)
@pytest.mark.parametrize("launcher", ["openmpi", "slurm"])
def test_nodes_meet_on_the_first_host(hosted, text, address, launcher):
    by_launcher = hosted(text, launcher)
    assert by_launcher.endpoint({})[0] == address
    assert by_launcher.endpoint({"MASTER_ADDR": "x", "MASTER_PORT": "4242"}) == ("x", 4242)


def test_each_restart_has_a_port_of_its_own_unless_the_user_has_set_one(hosted):
    by_launcher = hosted("a slots=1\nb slots=1\n", "openmpi")
    given = {"MASTER_PORT": "4242"}
    assert [by_launcher.endpoint(given, attempt)[1] for attempt in range(3)] == [4242] * 3
    assert len({by_launcher.endpoint({}, attempt)[1] for attempt in range(3)}) == 3


def test_an_address_of_a_host_that_was_lost_does_not_count(hosted):
    by_launcher, given = hosted("a slots=1\nb slots=1\nc slots=1\n", "openmpi"), {"MASTER_ADDR": "address-of-a"}
    assert by_launcher.without(["b"]).endpoint(given)[0] == "address-of-a"
    assert by_launcher.without(["a"]).endpoint(given)[0] == "b"
    assert by_launcher.without(["a"]).without(["c"]).endpoint(given)[0] == "b"


def test_pdsh_asks_the_first_host_for_its_address_unless_it_is_given(hosted, programs):
    assert hosted("a slots=2\n").endpoint({})[0] == "127.0.0.1"
    assert programs("pdsh")[-1] == "echo pretrain-node %n $(hostname -I)"
    assert hosted("a slots=2\n").endpoint({"MASTER_ADDR": "10.0.0.1"})[0] == "10.0.0.1"


@pytest.mark.parametrize(("port", "words"), [("x", "is 'x'"), ("0", "is 0; a port"), ("65536", "is 65536; a port")])
def test_what_is_no_port_is_an_error(hosted, port, words):
    with pytest.raises(LaunchError, match=f"MASTER_PORT {words}"):
        hosted("a slots=2\n").endpoint({"MASTER_PORT": port})


@pytest.fixture
def backend():
    return SimpleNamespace(exported_variables=("NCCL",), own_variables=("NCCL_OF_HOST",))


def test_variables_by_prefix_and_of_deepspeed_env_go_to_all_nodes(tmp_path, monkeypatch, backend):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.deepspeed_env").write_text("A=home\nB=home\n")
    (tmp_path / ".deepspeed_env").write_text("# networks\n\nB=here=there\nNCCL_OF_HOST=all\n")
    environ = {"NCCL_DEBUG": "INFO", "NCCL_OF_HOST": "one", "PYTHONPATH": "p", "UCX_TLS": "tcp", "OTHER": "1"}
    found = exported_variables(environ, backend)
    expected = {"NCCL_DEBUG": "INFO", "NCCL_OF_HOST": "all", "PYTHONPATH": "p", "UCX_TLS": "tcp"}
    assert expected | {"A": "home", "B": "here=there"} == {name: found[name] for name in (*expected, "A", "B")}
    assert "OTHER" not in found


@pytest.mark.parametrize("line", ["export", "export A=1", "2A=1", "Ä=1"])
def test_a_malformed_line_of_deepspeed_env_is_an_error(tmp_path, monkeypatch, backend, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of_network").write_text(f"A=1\n{line}\n")
    with pytest.raises(LaunchError, match=rf"of_network, line 2: '{line}' is not NAME=VALUE\.\n"):
        exported_variables({"DS_ENV_FILE": "of_network"}, backend)
