"""A run on the DeepSpeed engine is stopped, killed, resumed and changes its engine, and its loss curve continues."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from e2e.conftest import PRETRAIN, ROOT, latest, metrics, pretrain, tiny
from launch.rank_processes import state, wait_for
from pretrain.exit_codes import ExitCode

ZERO3 = "engine={name: deepspeed, zero: {stage: 3, stage3_param_persistence_threshold: 0}}"
LENGTH = 8
REPRODUCED = ("kind", "iteration", "consumed_samples", "lm_loss", "grad_norm", "learning_rate")

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked_python")]


@pytest.fixture(scope="module")
def run(text_tokens):
    """Return the arguments of a run of 8 iterations on two ranks with dropout."""

    def arguments(run_dir, *settings, engine=ZERO3):
        length = (f"train.train_iters={LENGTH}", "train.global_batch_size=8", f"checkpoint.save_interval={LENGTH}")
        evaluation = "evaluation={interval: 4, iters: 1}"
        return [*tiny(text_tokens, run_dir, *length, evaluation, engine, *settings), "--nproc", 2]

    return arguments


@pytest.fixture(scope="module")
def whole_run(run, tmp_path_factory):
    """A run with ZeRO-3 in one piece."""
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    pretrain(*run(run_dir))
    return run_dir


@pytest.fixture(scope="module")
def stopped_run(run, tmp_path_factory):
    """The same, which its time limit has stopped; and what it printed."""
    folder = tmp_path_factory.mktemp("runs")
    printed = pretrain(*run(folder / "stopped", "train.exit_duration_in_mins=0.0001"), code=ExitCode.SAVED)
    return folder / "stopped", printed


def numbers(run_dir):
    return [[record.get(key) for key in REPRODUCED] for record in metrics(run_dir)]


def close_to(run_dir, expected):
    """Compare what a run has logged with another's last lines: sums over ranks are rounded otherwise."""
    ours = metrics(run_dir)
    theirs = metrics(expected)[-len(ours) :]
    for key in REPRODUCED:
        values = [record[key] for record in ours if key in record]
        approximately = [record[key] for record in theirs if key in record]
        assert values == (approximately if key == "kind" else pytest.approx(approximately, rel=1e-5)), key


@pytest.mark.full
def test_deepspeed_says_nothing_by_itself(stopped_run):
    _, printed = stopped_run
    assert [line for line in printed.splitlines() if re.search("deepspeed|warn|error|GB", line, re.IGNORECASE)] == []


@pytest.mark.full
def test_a_run_stopped_by_its_time_limit_resumes_bit_for_bit(whole_run, stopped_run, run, tmp_path):
    run_dir = shutil.copytree(stopped_run[0], tmp_path / "stopped")
    assert latest(run_dir) == len(metrics(run_dir)) < LENGTH
    pretrain(*run(run_dir), "--resume")
    assert numbers(run_dir) == numbers(whole_run)


@pytest.mark.full
def test_a_run_killed_while_it_saves_resumes_from_the_previous_checkpoint(whole_run, run, tmp_path):
    run_dir = tmp_path / "killed"
    arguments = run(run_dir, "checkpoint.save_interval=1")
    kill_while_saving(arguments, run_dir / "checkpoints")
    (unfinished,) = (run_dir / "checkpoints").glob(".unfinished-*")
    before = latest(run_dir)
    assert before == int(unfinished.name.rpartition("-")[2]) - 1
    assert f"resumed from {run_dir}/checkpoints/iter_{before:07d}\n" in pretrain(*arguments, "--resume")
    assert numbers(run_dir) == numbers(whole_run)
    assert not unfinished.exists()


@pytest.mark.full
def test_a_run_changes_its_engine_twice_and_its_loss_curve_continues(whole_run, stopped_run, run, tmp_path):
    megatron, zero1 = "engine={name: megatron}", "engine={name: deepspeed, zero: {stage: 1}}"
    first, second = shutil.copytree(stopped_run[0], tmp_path / "first"), tmp_path / "second"
    pretrain(*run(first, "train.exit_interval=4", engine=megatron), "--resume")
    pretrain(*run(second, f"checkpoint.load={first / 'checkpoints'}", engine=zero1))
    assert [record["iteration"] for record in metrics(second) if record["kind"] == "train"] == [5, 6, 7, 8]
    assert latest(second) == LENGTH
    close_to(second, whole_run)


def kill_while_saving(arguments, folder):
    """Start a run, and kill it when a checkpoint after the first has files but is not complete."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*PRETRAIN, *map(str, arguments)], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 600
    try:
        while time.monotonic() < deadline and process.poll() is None:
            if (folder / "iter_0000001").exists() and is_saving(folder):
                ranks = [int(rank) for rank in children.read_text().split()]
                stop(ranks)
                if is_saving(folder):
                    return
                for rank in ranks:
                    os.kill(rank, signal.SIGCONT)
            time.sleep(0.001)
        pytest.fail("no checkpoint was seen while it was written")
    finally:
        process.kill()  # the ranks die with it
        process.wait()


def stop(ranks):
    """Stop processes, and wait until they stand: one that renames its folder finishes that first."""
    for rank in ranks:
        os.kill(rank, signal.SIGSTOP)
    wait_for(lambda: all(state(rank) in "TZ" for rank in ranks), "the ranks to stand")


def is_saving(folder):
    return any(folder.glob(".unfinished-0*/*.distcp"))
