"""Runs under a real Slurm: tasks of srun, one task a node, steps side by side, and signals."""

import os
import signal
import time

from clusters.training import STEP
from pretrain.exit_codes import ExitCode


def test_tasks_of_srun_train_as_its_ranks(nodes, training):
    words = training.words("--set", "train.train_iters=20")
    run = training.start(nodes[0], "srun", "--nodes=2", "--ntasks-per-node=2", *words)
    assert run.code() == 0, run.printed()
    assert training.saved() == 20
    assert "4 ranks" in run.printed()


def test_scancel_saves(nodes, training):
    run = training.start(nodes[0], "srun", "--job-name=cancelled", "--nodes=2", *training.words())
    training.reach(5)
    nodes[0].run("scancel", "--name=cancelled")
    run.code()
    stopped(run, training)


def test_sigterm_twice_within_milliseconds_is_one_request(nodes, training):
    """As at a time limit, where Slurm signals the step and then the job."""
    run = training.start(nodes[0], "srun", "--nodes=2", "--ntasks-per-node=2", *training.words())
    training.reach(5)
    ranks = [pid for node in nodes[1:] for pid in training.ranks(node)]
    for _ in range(2):
        for pid in ranks:
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.02)
    assert run.code() == ExitCode.SAVED, run.printed()
    stopped(run, training)


def test_one_task_a_node_starts_the_ranks_and_again_after_one_was_killed(nodes, training):
    own = training.words("--nproc", "2", "--nnodes", "2", "--max-restarts", "2")
    run = training.start(nodes[0], "srun", "--nodes=2", "--ntasks-per-node=1", *own)
    training.reach(5)
    os.kill(training.ranks(nodes[2])[-1], signal.SIGKILL)
    run.wait_for("restart 1 of 2", STEP)
    training.end()
    assert run.code() == 0, run.printed()
    assert "4 ranks" in run.printed()
    assert "killed by SIGKILL" in run.printed()


def test_two_steps_of_one_job_do_not_meet(nodes, training, another_training):
    both = training, another_training
    steps = [f"srun --exact --ntasks=2 {' '.join(map(str, one.words()))} &" for one in both]
    run = training.start(nodes[0], "salloc", "--nodes=1", "--ntasks=4", "bash", "-c", "\n".join([*steps, "wait"]))
    for one in both:
        one.reach(5)  # each has met its own ranks, and both train at the same time
    for one in both:
        one.end()
    assert run.code() == 0, run.printed()
    assert all(one.saved() for one in both)


def stopped(run, training):
    """The run says where it stopped, and this is saved."""
    assert training.saved(), run.printed()
    assert f"stopped after iteration {training.saved()}: SIGTERM" in run.printed()
