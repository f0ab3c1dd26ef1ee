"""Runs of two nodes under a real mpirun, torchrun's agents, and `pretrain` itself on both; and what comes between."""

import os
import signal
import sys

from clusters.training import STEP
from clusters.virtual_nodes import set_link, wait_until
from pretrain.exit_codes import ExitCode

MPIRUN = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-x", "PATH", "-x", "PYTHONPATH"]
AGENTS = "--nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=node1:29400 --rdzv-id=1 --max-restarts=2"


def test_ranks_of_mpirun_train(nodes, training):
    words = training.words("--set", "train.train_iters=20")
    run = training.start(nodes[0], *MPIRUN, "-x", "MASTER_ADDR=node1", "-host", "node1:2,node2:2", "-n", "4", *words)
    assert run.code() == 0, run.printed()
    assert "4 ranks" in run.printed()
    assert training.saved() == 20


def test_one_task_a_node_of_mpirun_starts_the_ranks(nodes, training):
    words = training.words("--nproc", "2", "--nnodes", "2", "--rdzv", "node1:29500", "--set", "train.train_iters=20")
    run = training.start(nodes[0], *MPIRUN, "-host", "node1,node2", "-npernode", "1", *words)
    assert run.code() == 0, run.printed()
    assert "4 ranks" in run.printed()
    assert training.saved() == 20


def test_agents_of_torchrun_start_the_ranks_again_after_one_was_killed(nodes, training):
    torchrun = [sys.executable, "-m", "torch.distributed.run", *AGENTS.split(), "-m", "pretrain.cli.main"]
    words = [*torchrun, *training.words("--resume", "auto", "--set", "checkpoint.save_interval=10")[1:]]
    agents = [training.start(node, *words, log=f"{node.name}.txt") for node in nodes[1:3]]
    wait_until(training.saved, training.printed)
    _, rank = nodes[1].pids(str(training.run_dir))
    os.kill(rank, signal.SIGKILL)
    wait_until(lambda: "resumed from" in training.printed(), training.printed)
    training.reach(training.saved() + 5)
    training.end()
    assert [run.code() for run in agents] == [0, 0], training.printed()


def on_both(nodes, training, *options, differ=()):
    """Start `pretrain` on node1 and node2."""
    words = training.words("--nproc", "1", "--nnodes", "2", "--rdzv", "node1:29500", *options)
    first = training.start(nodes[1], *words, log="node1.txt")
    return first, training.start(nodes[2], *words, *differ, log="node2.txt")


def test_both_nodes_go_on_after_a_cut_of_the_network(nodes, training):
    both = on_both(nodes, training, "--max-restarts", "5", "--set", "checkpoint.save_interval=10")
    wait_until(training.saved, training.printed)
    set_link(nodes, nodes[2], "down")
    try:
        both[0].wait_for("Node 1 (node2) has sent no heartbeat")
        both[1].wait_for("node 0 cannot be reached from here")
    finally:
        set_link(nodes, nodes[2], "up")
    both[0].wait_for("has sent no heartbeat", "resumed from", STEP)
    training.end()
    assert [run.code() for run in both] == [0, 0], training.printed()


def test_two_recipes_are_refused(nodes, training):
    both = on_both(nodes, training, "--max-restarts", "2", differ=("--set", "optimizer.lr=0.5"))
    assert [run.code() for run in both] == [ExitCode.USER_ERROR] * 2, training.printed()
    for run in both:
        assert all(word in run.printed() for word in ("node2", "optimizer.lr", "0.001", "0.5")), run.printed()
    assert training.iteration() == 0
