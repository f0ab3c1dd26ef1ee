"""A process that a scheduler has started once on each node starts the ranks there."""

import pytest

from pretrain.cli.options import RankCounts
from pretrain.cli.run import place_of_process
from pretrain.errors import LaunchError
from pretrain.launch.schedulers.detection import current_world, own_node
from pretrain.launch.schedulers.own_node import OwnNode

SRUN = {
    "SLURM_JOB_ID": "81234",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "PMIX_NAMESPACE": "prterun-node1-812@1",
}
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
OLD_PYTORCHJOB = POD | {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
PYTORCHJOB = OLD_PYTORCHJOB | {
    "WORLD_SIZE": "16",  # of ranks, since nprocPerNode is known
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "8",
    "PET_MASTER_ADDR": "job-master-0",
    "PET_MASTER_PORT": "23456",
}
TRAINJOB = {name: value for name, value in PYTORCHJOB.items() if name.startswith("PET_")} | {
    "PET_NPROC_PER_NODE": "auto"
}
SKYPILOT = {
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5\n",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
    "SKYPILOT_TASK_ID": "sky-2026-11-23-21-00-00_train_1",
}
LOCAL = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def node(environ, *, wanted=False):
    return own_node(wanted=wanted, environ=environ)


def test_one_task_of_srun_on_each_node_is_a_rank_unless_options_of_nodes_are_given():
    assert node(SRUN) is None
    assert current_world(SRUN).rank == 1
    port = current_world(SRUN).master_port
    assert node(SRUN, wanted=True) == OwnNode(by="srun", count=2, rank=1, rendezvous=f"gpu07:{port}")


@pytest.mark.parametrize("tasks", ["2", "2(x2)", "1,2"])
def test_several_tasks_of_srun_on_a_node_are_ranks_alone(tasks):
    assert node(SRUN | {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": "0"}, wanted=True) is None


def test_one_process_of_mpirun_on_each_node_may_be_a_node_too():
    assert node(MPIRUN) is None
    assert node(MPIRUN, wanted=True) == OwnNode(by="mpirun", count=2, rank=1, rendezvous=None)
    named = node(MPIRUN | {"MASTER_ADDR": "node1", "MASTER_PORT": "4242"}, wanted=True)
    assert named.rendezvous == "node1:4242"
    assert node(MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, wanted=True) is None


@pytest.mark.parametrize(
    ("environ", "nproc"), [(OLD_PYTORCHJOB, None), (PYTORCHJOB, 8), (TRAINJOB, None)], ids=["old", "now", "TrainJob"]
)
def test_a_pod_of_a_pytorchjob_is_a_node_and_no_rank(environ, nproc):
    expected = OwnNode(by="PyTorchJob", count=2, rank=1, rendezvous="job-master-0:23456", nproc=nproc)
    assert node(environ) == expected
    assert current_world(environ) is None


def test_the_only_pod_of_a_job_is_a_single_node():
    alone = OLD_PYTORCHJOB | {"RANK": "0", "WORLD_SIZE": "1"}
    assert (node(alone), current_world(alone)) == (None, None)


def test_a_rank_that_torchrun_has_started_in_a_pod_is_a_rank():
    assert node(PYTORCHJOB | LOCAL) is None
    assert current_world(PYTORCHJOB | LOCAL).rank == 3


def test_outside_of_pods_rank_and_world_size_alone_count_nodes_only_if_options_say_so():
    plain = {name: OLD_PYTORCHJOB[name] for name in OLD_PYTORCHJOB.keys() - POD.keys()}
    assert node(plain) is None
    with pytest.raises(LaunchError, match=r"not LOCAL_RANK[^~]*If they count nodes, pass --nnodes \$WORLD_SIZE"):
        current_world(plain)
    assert node(plain, wanted=True).rank == 1


def test_an_elastic_job_has_no_fixed_number_of_nodes():
    with pytest.raises(LaunchError, match="PET_NNODES is '1:4'; a number was expected"):
        node(PYTORCHJOB | {"PET_NNODES": "1:4"})


def test_each_machine_of_a_skypilot_task_is_a_node():
    found = node(SKYPILOT)
    assert (found.by, found.count, found.rank, found.nproc) == ("SkyPilot", 2, 1, None)
    host, _, port = found.rendezvous.partition(":")
    assert host == "10.0.0.4"
    assert 10_000 <= int(port) < 30_000
    assert node(SKYPILOT | {"SKYPILOT_NODE_RANK": "0"}).rendezvous == found.rendezvous
    assert node(SKYPILOT | {"SKYPILOT_TASK_ID": "another"}).rendezvous != found.rendezvous
    assert node(SKYPILOT | {"SKYPILOT_NUM_NODES": "1"}) is None


def test_ranks_that_are_started_on_a_machine_of_skypilot_are_ranks():
    assert node(SKYPILOT | LOCAL) is None
    assert node(SKYPILOT | MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}) is None
    assert node(SKYPILOT | SRUN).by == "SkyPilot"  # which reaches its nodes by srun, perhaps


def test_a_node_whose_variables_lack_the_address_of_node_0_is_told_how_to_give_it(monkeypatch):
    for name, value in MPIRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=r"do not tell node 0's address\.\nGive --rdzv HOST:PORT"):
        place_of_process(RankCounts(nproc=1, nnodes=None, rdzv=None, node_rank=None))
