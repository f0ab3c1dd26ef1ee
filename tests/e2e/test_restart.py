"""torchrun starts the ranks again after a failure, with the same command: the run continues."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.conftest import ROOT, metrics, tiny
from pretrain.launch.world import free_port


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_a_restart_by_torchrun_continues_from_the_last_checkpoint(text_tokens, tmp_path):
    run_dir = tmp_path / "run"
    arguments = tiny(
        text_tokens, run_dir, "train.train_iters=60", "checkpoint.save_interval=6", "evaluation={interval: 0}"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    command = [*torchrun, "--master-port", str(free_port()), "-m", "pretrain.cli.main", *map(str, arguments)]
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=output, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + 300
        while not list(run_dir.glob("checkpoints/iter_*")):
            assert time.monotonic() < deadline, "no checkpoint was seen"
            time.sleep(0.02)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert process.poll() is None
        os.kill(int(children[-1]), signal.SIGKILL)
        assert process.wait(600) == 0, (tmp_path / "output").read_text()
    assert "resumed from" in (tmp_path / "output").read_text()
    assert [record["iteration"] for record in metrics(run_dir)] == list(range(1, 61))
