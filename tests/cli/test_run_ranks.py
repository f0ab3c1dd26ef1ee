"""`pretrain run`: how many ranks there are, who starts them, and where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.faked_run import TORCHRUN, call, reference, site, trainings, workplace
from pretrain.launch.processes.failure import Failure

__all__ = ["call", "reference", "site", "trainings", "workplace"]

ONE_TASK_A_NODE = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
}


@pytest.fixture
def nodes(monkeypatch):
    """Nodes and ranks here of each run that would have joined others."""
    placements = []
    monkeypatch.setattr("pretrain.launch.node_attempts.run_node", lambda placed, *_: placements.append(placed))
    return lambda: [(each.nodes.count, each.nodes.rank, each.nodes.rendezvous, each.nproc) for each in placements]


def test_one_task_of_srun_on_each_node_starts_the_ranks_there(call, nodes, monkeypatch):
    for name, value in ONE_TASK_A_NODE.items():
        monkeypatch.setenv(name, value)
    code, _, err = call("--nproc", "2", "--nnodes", "2")
    assert (code, err) == (0, "node 1 of 2, by the variables of srun; rendezvous gpu07:10077\n")
    call("--nproc", "2", "--max-restarts", "3")
    call("--nnodes", "2", "--nproc", "2", "--rdzv", "gpu07:29500", "--node-rank", "0")
    call("--nnodes", "4", "--nproc", "2", "--rdzv", "other:29500")  # what the user says wins
    mine = (2, 1, "gpu07:10077", 2)
    assert nodes() == [mine, mine, (2, 0, "gpu07:29500", 2), (4, None, "other:29500", 2)]


def test_several_tasks_of_srun_on_a_node_are_told_how_to_be_one(call, monkeypatch):
    for name, value in (ONE_TASK_A_NODE | {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}).items():
        monkeypatch.setenv(name, value)
    code, _, err = call("--nproc", "2", "--nnodes", "2")
    assert (code, "srun --ntasks-per-node=1" in err) == (2, True)


def test_a_pod_of_a_pytorchjob_is_a_node_without_options(call, nodes, monkeypatch):
    pod = {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "2", "MASTER_PORT": "23456"}
    for name, value in (pod | {"MASTER_ADDR": "job-master-0", "RANK": "0", "WORLD_SIZE": "4"}).items():
        monkeypatch.setenv(name, value)
    assert call()[0] == 0
    assert call("--nproc", "1")[0] == 0
    assert nodes() == [(2, 0, "job-master-0:23456", 2), (2, 0, "job-master-0:23456", 1)]


def test_restarts_of_ranks_that_another_program_started_are_refused(call, trainings, monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    code, _, err = call("--max-restarts", "3")
    assert code == 2
    assert err.startswith("--max-restarts: this is rank 0 of 1, started by torchrun, srun or mpirun, which alone can")
    assert "Leave it out and pass --run-dir DIR --resume auto" in err
    assert trainings.calls == []


def test_fewer_nodes_are_about_restarts_and_fewer_than_all(call):
    assert "Pass --max-restarts N as well" in call("--allow-fewer-nodes", "1")[2]
    nodes = ("--max-restarts", "1", "--nnodes", "2", "--rdzv", "a:1")
    assert "--allow-fewer-nodes 2 is not below the number of nodes, 2." in call(*nodes, "--allow-fewer-nodes", "2")[2]


def test_ranks_that_do_not_fit_are_an_error_before_anything_starts(call, trainings):
    code, _, err = call("--nproc", "3", "--set", "parallel.tensor_model_parallel_size=2")
    assert code == 2
    assert "3 ranks cannot hold" in err


def test_by_default_there_are_as_many_ranks_as_the_model_needs(call):
    assert (
        "# ranks: 4 = tensor 2 x pipeline 2"
        in call(
            "--dry-run",
            "--set=parallel.tensor_model_parallel_size=2",
            "--set=parallel.pipeline_model_parallel_size=2",
        )[1]
    )
    assert "# ranks: 1 = " in call("--dry-run", "--nproc", "auto")[1]


EIGHT = "FakeBackend.device_count = lambda self: 8"
WIDE = ("--set", "model.num_attention_heads=16", "--set", "model.hidden_size=64")


@pytest.mark.parametrize(
    ("settings", "ranks", "notice"),
    [
        (["train.global_batch_size=8"], 8, ""),
        (
            [],
            4,
            "4 of 8 devices are used: global_batch_size 4 with a model-parallel size of 1 cannot be",
        ),
        (["train.global_batch_size=9", "train.micro_batch_size=3"], 3, "3 of 8 devices are used: global_batch_size 9"),
        (["parallel.tensor_model_parallel_size=2"], 8, ""),
        (
            ["parallel.tensor_model_parallel_size=2", "train.global_batch_size=6"],
            6,
            "6 of 8 devices are used: global_batch_size 6 with a model-parallel size of 2 cannot be divided over more",
        ),
    ],
)
def test_by_default_as_many_devices_are_used_as_the_recipe_fits(call, site, settings, ranks, notice):
    site.backend("eight", EIGHT)
    words = [word for setting in settings for word in ("--set", setting)]
    code, out, _ = call("--dry-run", "--backend", "eight", *words)
    assert (code, f"# ranks: {ranks} = " in out) == (0, True)
    assert (notice in out) if notice else ("devices are used" not in out)


def test_a_number_of_ranks_that_was_asked_for_is_taken_or_refused(call, site):
    site.backend("eight", EIGHT)
    code, _, err = call("--backend", "eight", "--nproc", "8")
    assert (code, "train.global_batch_size 4 is not a multiple of train.micro_batch_size 1 x data" in err) == (2, True)


def test_if_no_number_of_devices_fits_the_error_counts_all_of_them(call, site):
    site.backend("eight", EIGHT)
    code, _, err = call("--backend", "eight", "--set", "parallel.tensor_model_parallel_size=16", *WIDE)
    assert (code, "8 ranks cannot hold tensor_model_parallel_size 16" in err) == (2, True)


def test_a_run_says_on_how_many_devices_it_is(call, site, trainings, monkeypatch):
    site.backend("eight", EIGHT)
    monkeypatch.setattr("pretrain.launch.start.run_ranks", lambda job, worlds, rendezvous=None: None)
    code, out, _ = call("--backend", "eight")
    assert (code, out.startswith("4 of 8 devices are used: ")) == (0, True)


@pytest.mark.parametrize("nproc", ["0", "-1", "many", "1.5"])
def test_a_number_of_ranks_is_positive_or_auto(call, nproc):
    code, _, err = call("--nproc", nproc)
    assert code == 2
    assert "neither a positive number nor 'auto'" in err


def test_a_user_error_of_a_rank_is_shown_as_a_user_error(call, monkeypatch):
    failure = Failure(rank=1, when=0.0, exit_code=2, text="bad data\nFix it.")
    monkeypatch.setattr("pretrain.launch.start.run_ranks", lambda job, worlds, rendezvous=None: failure)
    assert call("--nproc", "2") == (2, "", "rank 1: bad data\nFix it.\n")


def test_the_crash_of_a_rank_is_shown_with_its_traceback(call, monkeypatch):
    failure = Failure(rank=1, when=0.0, exit_code=1, text="Traceback ...\nValueError: bug")
    monkeypatch.setattr("pretrain.launch.start.run_ranks", lambda job, worlds, rendezvous=None: failure)
    assert call("--nproc", "2") == (1, "", "rank 1 failed:\nTraceback ...\nValueError: bug\n")


def test_a_rank_that_torchrun_started_only_trains(call, trainings, monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert call("--run-dir", "here")[0] == 0
    (training,) = trainings.calls
    assert training["world"].master_port == 29500
    assert training["run_dir"] == Path("here").absolute()


def test_a_rank_that_torchrun_started_starts_no_others(call, trainings, monkeypatch, workplace):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    code, _, err = call("--nproc", "2")
    assert code == 2
    assert "--nproc, --nnodes, --rdzv and --node-rank have no effect" in err
    (workplace / "hosts").write_text("node1 slots=2\n")
    assert call("--hostfile", "hosts")[2] == err
    assert trainings.calls == []


def test_several_nodes_need_a_rendezvous(call):
    assert "--rdzv HOST:PORT" in call("--nnodes", "2")[2]
    assert "no effect on one node" in call("--rdzv", "a:1")[2]


def test_a_hostfile_says_how_many_ranks_there_are(call, workplace):
    (workplace / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")
    code, out, _ = call("--dry-run", "--hostfile", "hosts", "--set", "parallel.tensor_model_parallel_size=2")
    assert code == 0
    assert "# hosts: node1 2, node2 2; started by pdsh\n" in out
    assert "# ranks: 4 = tensor 2 x pipeline 1 x data 2\n" in out


def test_hosts_whose_ranks_do_not_fit_are_an_error_that_counts_them(call, workplace):
    (workplace / "hosts").write_text("node1 slots=2\nnode2 slots=1\n")
    code, _, err = call("--hostfile", "hosts", "--set", "parallel.tensor_model_parallel_size=2")
    assert code == 2
    assert err.splitlines()[0] == f"{workplace}/hosts: 3 slots (node1 2, node2 1), a rank for each."
    assert "3 ranks cannot hold tensor_model_parallel_size 2" in err


@pytest.mark.parametrize("option", ["--nproc=2", "--nnodes=2", "--rdzv=a:1", "--node-rank=0"])
def test_a_hostfile_and_a_number_of_ranks_exclude_each_other(call, option):
    code, _, err = call("--hostfile", "hosts", option)
    assert code == 2
    assert "--hostfile says where ranks run and how many: --nproc, --nnodes, --rdzv and --node-rank have no" in err


def test_a_hostfile_needs_pdsh(call, workplace, monkeypatch):
    (workplace / "hosts").write_text("node1 slots=2\n")
    monkeypatch.setenv("PATH", str(workplace))
    code, _, err = call("--hostfile", "hosts")
    assert code == 2
    assert err.startswith("--hostfile: not on the PATH: pdsh, ssh.\n")
    assert not (workplace / "runs").exists()


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("slurm", "it was removed; use srun --ntasks-per-node=1 pretrain run RECIPE --nproc RANKS --nnodes NODES"),
        ("openmpi", "it was removed; use mpirun -npernode 1 -x MASTER_ADDR=HOST pretrain run RECIPE --nproc RANKS"),
        ("pdsh", "leave it out: --hostfile starts the nodes by pdsh."),
    ],
)
def test_the_launcher_of_a_hostfile_is_answered_with_what_replaces_it(call, launcher, words):
    code, _, err = call("--hostfile", "hosts", "--launcher", launcher)
    assert (code, f"--launcher: {words}" in err) == (2, True)


def test_starting_the_ranks_of_a_hostfile_imports_neither_torch_nor_deepspeed(workplace):
    (workplace / "hosts").write_text("node1 slots=2\n")
    for name in ("pdsh", "ssh"):
        (workplace / name).touch(mode=0o755)
    program = (
        "import sys; from pretrain.cli.main import main; from pretrain.launch.nodes import hosts\n"
        "hosts.run_on_hosts = lambda hosts, job: print('started', job.recipe, hosts)\n"
        "try: main(['tiny.yml', '--hostfile', 'hosts'])\n"
        "except SystemExit as ended: print(ended.code, {'torch', 'deepspeed'} & set(sys.modules))"
    )
    environment = {**os.environ, "PATH": f"{workplace}:{os.environ['PATH']}"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("started tiny.yml node1 2\n0 set()\n", "")
