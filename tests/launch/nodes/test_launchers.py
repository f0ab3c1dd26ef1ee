"""DeepSpeed's own launcher, with programs of the tests in place of pdsh, ssh, mpirun and srun."""

import importlib.util
import itertools
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from launch.rank_processes import alive, pids_of_ranks
from plugins.fake_site import site
from pretrain.errors import LaunchError
from pretrain.launch.hosted_ranks import run_hosted
from pretrain.launch.nodes.hostfile import read_hostfile
from pretrain.launch.nodes.launchers import LAUNCHERS, RANK, Hosted
from pretrain.launch.processes.failure import CRASH, USER_ERROR
from pretrain.launch.runner import accelerator
from pretrain.launch.world import free_port

__all__ = ["site"]

FAKES = Path(__file__).parents[1] / "fake_launchers.py"


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Fakes of all programs on the PATH; returns what each was called with. Ranks meet on a port that is free."""
    folder, calls = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    calls.mkdir()
    for name in ("pdsh", "ssh", "mpirun", "srun", "ompi_info", "sinfo"):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {FAKES} {name} "$@"\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_CALLS", str(calls))
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.chdir(tmp_path)
    return lambda name: json.loads((calls / f"{name}.json").read_text())


@pytest.fixture
def hosted(tmp_path):
    """Writes a hostfile of one text."""

    def written(text, launcher="pdsh"):
        path = tmp_path / "hosts"
        path.write_text(text)
        return Hosted(hosts=read_hostfile(path), launcher=launcher)

    return written


def told(tmp_path, ranks):
    return [json.loads((tmp_path / f"run/{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.slow
def test_pdsh_starts_the_ranks_of_every_host(job, hosted, programs, tmp_path):
    assert run_hosted(job("report"), hosted("host-a slots=1\nhost-b slots=2\n")) is None
    ranks = told(tmp_path, 3)
    assert [rank["world"] for rank in ranks] == [[0, 3, 0, 1, 0], [1, 3, 1, 2, 1], [2, 3, 0, 2, 1]]
    assert {rank["environ"]["MASTER_ADDR"] for rank in ranks} == {"127.0.0.1"}  # what `ssh host-a hostname -I` says
    assert {rank["environ"]["MASTER_PORT"] for rank in ranks} == {os.environ["MASTER_PORT"]}
    assert programs("pdsh")[:5] == ["-S", "-f", "1024", "-w", "host-a,host-b"]
    assert f"cd {tmp_path};" in programs("pdsh")
    assert str(RANK.parent) not in ranks[0]["path"]


@pytest.mark.slow
def test_mpirun_starts_the_ranks(job, hosted, programs, tmp_path):
    one = hosted("localhost slots=2 max_slots=2\n", "openmpi")
    assert run_hosted(job("report"), one) is None
    assert [rank["world"] for rank in told(tmp_path, 2)] == [[0, 2, 0, 2, 0], [1, 2, 1, 2, 0]]
    assert {rank["environ"]["MASTER_ADDR"] for rank in told(tmp_path, 2)} == {"localhost"}
    words = programs("mpirun")
    assert words[:4] == ["-n", "2", "-hostfile", str(one.hosts.file)]
    assert "--bind-to none" in " ".join(words)
    assert words[-4:-1] == [sys.executable, "-u", str(RANK)]


@pytest.mark.slow
def test_srun_starts_the_ranks_where_the_hostfile_says(job, hosted, programs, tmp_path):
    assert run_hosted(job("report"), hosted("host-a slots=1\nhost-b slots=1\n", "slurm")) is None
    assert [rank["world"] for rank in told(tmp_path, 2)] == [[0, 2, 0, 1, 0], [1, 2, 0, 1, 1]]
    assert {rank["environ"]["DS_ACCELERATOR"] for rank in told(tmp_path, 2)} == {None}  # the launcher's alone
    words = programs("srun")
    assert words[:3] == ["-n", "2", "--ntasks-per-node=1"]
    assert words[3:7] == ["--nodelist", "host-a,host-b", "--nodes", "2"]
    assert words[7].startswith("--export=ALL,")
    assert "PYTHONSAFEPATH=1" in words[7]
    assert words[-4:-1] == [sys.executable, "-u", str(RANK)]


@pytest.mark.slow
def test_a_crash_of_one_rank_ends_those_of_all_hosts(job, hosted, programs, tmp_path, capfd):
    failure = run_hosted(job("rank_1_crashes"), hosted("host-a slots=1\nhost-b slots=1\n"))
    assert failure.exit_code == CRASH
    assert str(failure).startswith("rank 1 failed:\nTraceback")
    assert not any(alive(pid) for pid in pids_of_ranks(tmp_path / "run"))
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_host_that_cannot_be_reached_is_an_error_in_deepspeeds_words(job, hosted, programs, monkeypatch, capfd):
    monkeypatch.setenv("FAKE_UNREACHABLE", "host-a")
    failure = run_hosted(job("report"), hosted("host-a slots=2\n"))
    assert failure.exit_code == USER_ERROR
    assert str(failure).startswith("DeepSpeed's launcher: Using hostfile at ")
    assert "host=host-a was not reachable via ssh" in str(failure)
    assert "Traceback" not in "".join(capfd.readouterr())


def test_slurm_takes_as_many_ranks_on_every_host(hosted):
    with pytest.raises(LaunchError) as raised:
        hosted("a slots=2\nb slots=4\n", "slurm")
    assert "needs the same slots on every host" in str(raised.value)
    assert "a 2, b 4.\nMake them equal, or pass --launcher pdsh or openmpi." in str(raised.value)


@pytest.mark.parametrize(
    ("launcher", "missing", "remedy"),
    [
        ("pdsh", "pdsh, ssh", "package"),
        ("openmpi", "mpirun, ompi_info", "openmpi-bin"),
        ("slurm", "srun, sinfo", "Slurm"),
    ],
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


def test_without_deepspeed_it_says_how_to_get_it(hosted, programs, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "deepspeed" else found(name))
    with pytest.raises(LaunchError, match=r'deepspeed is not installed\.\npip install "pretrain\[deepspeed\]"'):
        hosted("a slots=2\n").require()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_where_all_is_installed_the_launcher_can_be_called(hosted, programs, launcher):
    hosted("a slots=2\n", launcher).require()


def arguments(hosted, environ=None, folder=Path("run")):
    """Return DeepSpeed's arguments, and pairs of neighbours among them."""
    words = hosted.arguments(folder, environ or {})
    return words, list(itertools.pairwise(words))


def test_a_single_host_is_not_taken_for_this_machine(hosted):
    assert "--force_multi" in arguments(hosted("far slots=2\n"))[0]


def test_pdsh_leaves_the_address_to_deepspeed_unless_it_is_given(hosted):
    assert "--master_addr" not in arguments(hosted("a slots=2\n"))[0]
    assert ("--master_addr", "10.0.0.1") in arguments(hosted("a slots=2\n"), {"MASTER_ADDR": "10.0.0.1"})[1]


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
def test_mpirun_has_its_ranks_told_where_they_meet(hosted, text, address):
    by_mpirun = hosted(text, "openmpi")
    port = by_mpirun.meeting({})[1]
    assert by_mpirun.variables({}) == {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    assert ("--master_addr", address) in arguments(by_mpirun)[1]
    assert by_mpirun.variables({"MASTER_ADDR": "x", "MASTER_PORT": "4242"}) == {
        "MASTER_ADDR": "x",
        "MASTER_PORT": "4242",
    }


def test_srun_knows_itself_where_rank_0_is(hosted):
    assert set(hosted("a slots=2\n", "slurm").variables({})) == {"MASTER_PORT"}
    assert hosted("a slots=2\n", "pdsh").variables({}) == {}


def test_a_port_that_is_no_number_is_an_error(hosted):
    with pytest.raises(LaunchError, match="MASTER_PORT is 'x'"):
        arguments(hosted("a slots=2\n"), {"MASTER_PORT": "x"})


def test_a_path_that_a_shell_would_read_otherwise_is_an_error_with_pdsh_alone(hosted):
    folder = Path("my runs/1")
    with pytest.raises(LaunchError, match=r"'my runs/1' is read otherwise .*\nUse a path of letters"):
        arguments(hosted("a slots=2\n"), folder=folder)
    assert arguments(hosted("a slots=2\n", "slurm"), folder=folder)[0][-1] == "my runs/1"


def test_deepspeeds_device_is_the_backends_or_the_cpu_where_it_has_none(site):
    assert accelerator("cpu") == "cpu"
    for device in ("cuda", "qpu"):
        backend = f"""
        class Device(Backend):
            name = "{device}-like"
            device_type = "{device}"
            process_group = "gloo"
            availability = device = None

        @hookimpl
        def pretrain_backend():
            return Device()
        """
        site.install(
            f"{device}-like", "1", "pretrain.backends", **{f"{device}-like": site.module(f"{device}_x", backend)}
        )
    assert accelerator("cuda-like") == "cuda"
    assert accelerator("qpu-like") == "cpu"
