"""Ranks that are killed are started again, by `--max-restarts` or by torchrun: the losses are those of a whole run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.conftest import PRETRAIN, ROOT, metrics, pretrain, tiny
from pretrain.launch.world import free_port

KEYS = ("iteration", "consumed_samples", "lm_loss", "grad_norm", "learning_rate")
SETTINGS = ("train.train_iters=60", "checkpoint.save_interval=6", "evaluation={interval: 0}")
pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.usefixtures("forked_python")]


@pytest.fixture(scope="module")
def undisturbed(text_tokens, tmp_path_factory, forked_python):
    """The steps of a run on two ranks that nothing disturbs."""
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    pretrain(*tiny(text_tokens, run_dir, *SETTINGS), "--nproc", "2")
    return steps(run_dir)


def steps(run_dir):
    return [[record.get(key) for key in KEYS] for record in metrics(run_dir) if record["kind"] == "train"]


def saved(run_dir):
    return len(list(run_dir.glob("checkpoints/iter_*")))


def copied(run_dir):
    """The iteration of the last rank's latest copy on its node."""
    return max((int(found.parent.name) for found in run_dir.glob("copies/*/rank-1-at-1/*/copy.json")), default=0)


def with_kills(command, run_dir, checkpoints, there=saved):
    """Run a command; kill its last rank when so many checkpoints are there, for each number. Return what it printed."""
    output = run_dir.with_name("output")
    with output.open("w") as file:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            list(map(str, command)), cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        for count in checkpoints:
            deadline = time.monotonic() + 300
            while there(run_dir) < count:
                assert time.monotonic() < deadline, output.read_text()
                assert process.poll() is None, output.read_text()
                time.sleep(0.02)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(children[-1]), signal.SIGKILL)
        code = process.wait(600)
    assert code == 0, output.read_text()
    return output.read_text()


@pytest.mark.full
def test_ranks_that_make_their_imports_themselves_have_the_losses_of_forked_ones(
    undisturbed, text_tokens, tmp_path, monkeypatch
):
    monkeypatch.setenv("PRETRAIN_FORK_RANKS", "0")
    pretrain(*tiny(text_tokens, tmp_path / "run", *SETTINGS), "--nproc", "2")
    assert steps(tmp_path / "run") == undisturbed


@pytest.mark.full
def test_a_run_whose_rank_is_killed_twenty_times_has_the_losses_of_an_undisturbed_one(
    undisturbed, text_tokens, tmp_path
):
    run_dir = tmp_path / "run"
    settings = (*SETTINGS, "checkpoint.save_interval=2", "checkpoint.keep=100")
    command = [*PRETRAIN, *tiny(text_tokens, run_dir, *settings), "--nproc", "2", "--max-restarts", "20"]
    printed = with_kills(command, run_dir, checkpoints=range(1, 21))
    assert steps(run_dir) == undisturbed
    assert printed.count("restart ") == 20


@pytest.mark.full
def test_a_run_whose_rank_is_killed_twice_has_the_losses_of_an_undisturbed_one(undisturbed, text_tokens, tmp_path):
    run_dir = tmp_path / "run"
    command = [*PRETRAIN, *tiny(text_tokens, run_dir, *SETTINGS), "--nproc", "2", "--max-restarts", "3"]
    printed = with_kills(command, run_dir, checkpoints=(1, 5))
    assert steps(run_dir) == undisturbed
    assert printed.count("rank 1 failed:\nIt was killed by SIGKILL.") == 2
    assert "restart 1 of 3 in 1 s, from the checkpoint of iteration " in printed
    assert printed.endswith("ended after 2 restarts\n")


@pytest.mark.full
def test_killed_ranks_go_on_from_their_nodes_copies_with_equal_losses(undisturbed, text_tokens, tmp_path):
    run_dir = tmp_path / "run"
    copies = ("checkpoint.save_interval=24", "checkpoint.local_interval=2", f"checkpoint.local_dir={run_dir}/copies")
    command = [*PRETRAIN, *tiny(text_tokens, run_dir, *SETTINGS, *copies), "--nproc", "2", "--max-restarts", "9"]
    printed = with_kills(command, run_dir, (4, 14, 30, 36, 54), copied)
    assert steps(run_dir) == undisturbed
    assert printed.count("resumed from the nodes' copies of iteration ") == 5
    assert printed.count(" in 1 s, from ") == printed.count(" or later copies on the nodes") == 5
    assert not list(run_dir.glob("copies/*/*/*"))


@pytest.mark.full
def test_a_restart_by_torchrun_continues_from_the_last_checkpoint(undisturbed, text_tokens, tmp_path):
    run_dir = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    command = [*torchrun, "--master-port", free_port(), "-m", "pretrain.cli.main"]
    printed = with_kills([*command, *tiny(text_tokens, run_dir, *SETTINGS)], run_dir, checkpoints=(1,))
    assert "resumed from" in printed
    assert steps(run_dir) == undisturbed
