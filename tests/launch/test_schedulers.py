"""A process that a scheduler has started once on each node starts the ranks there."""

import pytest

from pretrain.cli.options import RankCounts
from pretrain.cli.run import place_of_process
from pretrain.errors import LaunchError
from pretrain.launch.schedulers import OwnNode, current_world, own_node
from pretrain.launch.world import World

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "81234",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
}

MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "PMIX_NAMESPACE": "prterun-node1-812@1",
    "MASTER_ADDR": "node1",
}


def test_a_process_that_is_not_a_rank_has_no_world():
    assert current_world({"PATH": "/bin"}) is None


def test_torchruns_variables_give_the_world():
    assert current_world(TORCHRUN) == World(
        rank=5, world_size=8, local_rank=1, local_world_size=4, node_rank=1, master_addr="node0", master_port=29500
    )


def test_a_world_gives_torchruns_variables_back():
    assert current_world(TORCHRUN).environment() == TORCHRUN


def test_the_node_follows_from_the_rank_where_it_is_not_said():
    assert current_world({name: value for name, value in TORCHRUN.items() if name != "GROUP_RANK"}).node_rank == 1


def test_a_rank_without_a_rendezvous_address_is_an_error():
    with pytest.raises(LaunchError, match="not LOCAL_RANK, MASTER_ADDR, MASTER_PORT"):
        current_world({"RANK": "0", "WORLD_SIZE": "2"})


def test_a_rank_that_is_not_a_number_is_an_error():
    with pytest.raises(LaunchError, match="RANK is 'one'"):
        current_world(TORCHRUN | {"RANK": "one"})


def test_sruns_variables_give_the_world():
    world = current_world(SRUN)
    assert (world.rank, world.world_size, world.local_rank, world.local_world_size, world.node_rank) == (2, 3, 0, 1, 1)
    assert world.master_addr == "gpu07"
    assert 10_000 <= world.master_port < 30_000


def test_all_tasks_of_a_step_have_one_port_and_steps_and_jobs_different_ones():
    other_task = current_world(SRUN | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"})
    other_job = current_world(SRUN | {"SLURM_JOB_ID": "81235"})
    steps = {current_world(SRUN | {"SLURM_STEP_ID": str(step)}).master_port for step in range(20)}
    assert len(steps) == 20
    assert other_task.master_port == current_world(SRUN).master_port
    assert other_job.master_port != current_world(SRUN).master_port


def test_the_user_may_choose_the_rendezvous_address():
    world = current_world(SRUN | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4242"})
    assert (world.master_addr, world.master_port) == ("10.0.0.1", 4242)


def test_torchrun_started_by_srun_wins():
    assert current_world(SRUN | TORCHRUN).master_addr == "node0"


def test_one_task_of_srun_is_a_single_process():
    assert current_world(SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"}) is None


def test_an_interactive_step_is_a_single_process_in_any_allocation():
    assert current_world(SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"}) is None


def test_a_batch_script_outside_srun_is_a_single_process():
    batch = {name: value for name, value in SRUN.items() if not name.startswith("SLURM_STEP")}
    assert current_world(batch | {"SLURM_PROCID": "0"}) is None


@pytest.mark.parametrize("tasks", ["", "two", "2(x", "3"])
def test_tasks_per_node_that_do_not_fit_are_an_error(tasks):
    with pytest.raises(LaunchError, match="SLURM_STEP_TASKS_PER_NODE"):
        current_world(SRUN | {"SLURM_STEP_TASKS_PER_NODE": tasks})


def test_tasks_per_node_may_be_repeated():
    many = SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4(x3),2", "SLURM_STEP_NUM_TASKS": "14"}
    assert current_world(many | {"SLURM_NODEID": "2"}).local_world_size == 4
    assert current_world(many | {"SLURM_NODEID": "3"}).local_world_size == 2


def test_a_step_without_its_nodes_is_an_error():
    with pytest.raises(LaunchError, match="SLURM_JOB_NODELIST"):
        current_world({name: value for name, value in SRUN.items() if name != "SLURM_JOB_NODELIST"})


def test_deepspeeds_variables_for_the_node_are_understood():
    of_deepspeed = {"LOCAL_WORLD_SIZE": "LOCAL_SIZE", "GROUP_RANK": "CROSS_RANK"}
    assert current_world({of_deepspeed.get(name, name): value for name, value in TORCHRUN.items()}) == World(
        rank=5, world_size=8, local_rank=1, local_world_size=4, node_rank=1, master_addr="node0", master_port=29500
    )


def test_mpiruns_variables_give_the_world():
    world = current_world(MPIRUN)
    assert (world.rank, world.world_size, world.local_rank, world.local_world_size, world.node_rank) == (3, 4, 1, 2, 1)
    assert world.master_addr == "node1"
    assert current_world(MPIRUN | {"MASTER_PORT": "4242"}).master_port == 4242


def test_all_ranks_of_mpirun_have_one_port_and_runs_different_ones():
    other_rank = current_world(MPIRUN | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    assert other_rank.master_port == current_world(MPIRUN).master_port
    assert current_world(MPIRUN | {"PMIX_NAMESPACE": "other"}).master_port != current_world(MPIRUN).master_port


def test_mpirun_on_several_hosts_needs_master_addr():
    without = {name: value for name, value in MPIRUN.items() if name != "MASTER_ADDR"}
    with pytest.raises(LaunchError, match=r"MASTER_ADDR is not set\.\nName the host of rank 0: mpirun -x MASTER_ADDR"):
        current_world(without)
    assert current_world(without | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}).master_addr == "127.0.0.1"


def test_one_rank_of_mpirun_is_a_single_process():
    assert current_world(MPIRUN | {"OMPI_COMM_WORLD_SIZE": "1"}) is None


def test_mpirun_started_over_srun_wins_and_torchrun_over_both():
    assert current_world(SRUN | MPIRUN).rank == 3
    assert current_world(SRUN | MPIRUN | TORCHRUN).rank == 5


SRUN_NODE = {
    "SLURM_JOB_ID": "81234",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
}
MPIRUN_NODE = {
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
    assert node(SRUN_NODE) is None
    assert current_world(SRUN_NODE).rank == 1
    port = current_world(SRUN_NODE).master_port
    assert node(SRUN_NODE, wanted=True) == OwnNode(by="srun", count=2, rank=1, rendezvous=f"gpu07:{port}")


@pytest.mark.parametrize("tasks", ["2", "2(x2)", "1,2"])
def test_several_tasks_of_srun_on_a_node_are_ranks_alone(tasks):
    assert node(SRUN_NODE | {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": "0"}, wanted=True) is None


def test_one_process_of_mpirun_on_each_node_may_be_a_node_too():
    assert node(MPIRUN_NODE) is None
    assert node(MPIRUN_NODE, wanted=True) == OwnNode(by="mpirun", count=2, rank=1, rendezvous=None)
    named = node(MPIRUN_NODE | {"MASTER_ADDR": "node1", "MASTER_PORT": "4242"}, wanted=True)
    assert named.rendezvous == "node1:4242"
    assert node(MPIRUN_NODE | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, wanted=True) is None


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
    with pytest.raises(LaunchError, match="PET_NNODES is '1:4', not a number"):
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
    assert node(SKYPILOT | MPIRUN_NODE | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}) is None
    assert node(SKYPILOT | SRUN_NODE).by == "SkyPilot"  # which reaches its nodes by srun, perhaps


def test_a_node_whose_variables_lack_the_address_of_node_0_is_told_how_to_give_it(monkeypatch):
    for name, value in MPIRUN_NODE.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=r"but not the address of node 0\.\nPass --rdzv HOST:PORT"):
        place_of_process(RankCounts(nproc=1, nnodes=None, rdzv=None, node_rank=None))
