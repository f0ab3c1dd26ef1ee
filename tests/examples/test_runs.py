"""Each example's own command trains on two nodes of this machine; asked to end it saves, and started again it goes on.

What a cluster does is done here by hand: variables are set, a pod that may start again is started again.
"""

import re
import signal
import sys
from pathlib import Path

import pytest

from examples.conftest import EXAMPLES, ITERATIONS, LIMIT, SAVED, codes, documents
from pretrain.launch.world import free_port

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.ranks]


def by_indexed_job(training, rank, port):
    _, job = documents("kubernetes/indexed-job.yml")
    [container] = job["spec"]["template"]["spec"]["containers"]
    words = [argument.replace("$(JOB_COMPLETION_INDEX)", str(rank)) for argument in container["args"]]
    return of_pod(training, [word.replace("train-0.train:29500", f"127.0.0.1:{port}") for word in words]), {}


def by_trainjob(training, rank, port):
    _, trainjob = documents("kubernetes/trainjob.yml")
    variables = {  # as pkg/runtime/framework/plugins/torch of Kubeflow Trainer sets them
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port),
    }
    return of_pod(training, trainjob["spec"]["trainer"]["args"]), variables


def of_pod(training, arguments):
    """Return the command of a pod whose file system /shared is the test's folder, without GPUs."""
    words = [word.replace("/shared", str(training.folder)).replace("backend=cuda", "backend=cpu") for word in arguments]
    words = [word.replace("recipe.yml", training.recipe.name) for word in words]
    return ["pretrain", *(word.replace("--nproc=8", "--nproc=1") for word in words)]


def by_skypilot(training, rank, port):
    [task] = documents("skypilot/train.yml")
    script = task["run"].replace("/shared", str(training.folder)).replace("--backend cuda", "--backend cpu")
    script = script.replace("recipes/quickstart.yml", str(training.recipe))
    home = training.folder / "home"  # where `setup` would have installed pretrain
    (home / "pretrain").mkdir(parents=True, exist_ok=True)
    if not (home / "pretrain" / "bin").exists():
        (home / "pretrain" / "bin").symlink_to(Path(sys.executable).parent)
    variables = {
        "HOME": str(home),
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": str(rank),
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "SKYPILOT_TASK_ID": f"sky-{port}",
    }
    return ["bash", "-c", script], variables


@pytest.mark.parametrize("way", [by_indexed_job, by_trainjob, by_skypilot])
def test_a_training_that_was_asked_to_end_saves_and_goes_on(training, way):
    def start():
        port = free_port()
        commands = [way(training, rank, port) for rank in range(2)]
        return [training.start(words, training.environment(**variables)) for words, variables in commands]

    first = start()
    training.stop(first[1])
    assert codes(first) == SAVED, training.printed()
    assert 3 <= len(training.losses()) < ITERATIONS
    assert codes(start()) == [0, 0], training.printed()
    assert "resumed from" in training.printed()
    assert training.is_whole()


@pytest.fixture
def cluster():
    """A real Ray cluster of two nodes, which are processes of this machine."""
    pytest.importorskip("ray", reason="needs ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        made.add_node(num_cpus=1)
    yield made
    made.shutdown()


def on_ray(training, cluster):
    words = [sys.executable, EXAMPLES / "ray" / "train.py", "--nodes", "2", "--"]
    recipe = training.recipe.name  # in the folder where the command is given, which is not Ray's
    options = [recipe, "--backend", "cpu", "--nproc", "1", "--run-dir", training.run_dir]
    return training.start([*words, *options], training.environment(RAY_ADDRESS=cluster.address))


def test_on_ray_a_signal_saves_and_the_same_command_goes_on(training, cluster):
    first = on_ray(training, cluster)
    training.stop(first)
    assert codes([first]) == SAVED[:1], training.printed()
    assert codes([on_ray(training, cluster)]) == [0], training.printed()
    assert training.is_whole()


def test_on_ray_a_lost_node_is_waited_for_and_the_training_goes_on(training, cluster):
    training.endless()
    run = on_ray(training, cluster)
    training.reach(25)  # after a checkpoint
    cluster.remove_node(min(cluster.worker_nodes, key=str), allow_graceful=False)
    training.says("ended with a lost node; the training starts again")
    training.says("waiting for 2 nodes with 0 GPUs and 1 cores each")
    cluster.add_node(num_cpus=1)
    training.says("resumed from")
    run.send_signal(signal.SIGTERM)
    assert codes([run]) == SAVED[:1], training.printed()


def test_on_ray_an_error_of_the_user_is_not_tried_again(training, cluster):
    training.recipe.write_text(re.sub("num_layers", "num_layer", training.recipe.read_text()))
    run = on_ray(training, cluster)
    assert run.wait(LIMIT) == 2, training.printed()
    assert "did you mean" in training.printed().lower()
    assert "starts again" not in training.printed()


def test_on_ray_the_end_of_the_driver_ends_the_ranks(training, cluster):
    training.endless()
    run = on_ray(training, cluster)
    training.reach(3)
    run.send_signal(signal.SIGKILL)
    run.wait(LIMIT)
    training.stands_still()
