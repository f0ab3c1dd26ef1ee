"""Trainings on a GPU: the loss curve is the CPU's, and fp16 with dropout learns. Skipped where there is no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.plugins.backend import Unavailable
from pretrain_cuda.backend import CudaBackend

RECIPES = Path(__file__).parents[3] / "recipes"
BACKEND = "cuda"
SHORT = (
    "train.train_iters=30",
    "checkpoint.save=false",
    "evaluation={interval: 0}",
    "logging={log_interval: 1, tensorboard: false}",
)
QUICKSTART = (*SHORT, "data.corpus={source: python_stdlib, max_bytes: 2_000_000}")
MINIATURE = (
    *SHORT,
    "model.num_layers=4",
    "model.hidden_size=256",
    "model.num_attention_heads=4",
    "model.seq_length=256",
    "model.max_position_embeddings=256",
    "tokenizer={type: huggingface, file: data/quickstart/tokenizer.json}",
    "data={path: data/quickstart/python_stdlib, split: '97,2,1', num_workers: 0}",
    "train.micro_batch_size=4",
    "train.global_batch_size=8",
    "precision.initial_loss_scale=65536",
    "optimizer.lr=1e-3",
    "schedule={lr_decay_style: constant, lr_warmup_iters: 5}",
)

if isinstance(answer := CudaBackend().availability(), Unavailable):
    pytest.skip(f"no GPU: {answer.reason}", allow_module_level=True)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder in which the quickstart's corpus is built, once."""
    return tmp_path_factory.mktemp("training")


def train(folder, recipe, backend, run, overrides):
    """Train and return the run directory."""
    command = [sys.executable, "-m", "pretrain.cli.main", str(RECIPES / f"{recipe}.yml"), "--backend", backend]
    command += ["--nproc", "1", "--run-dir", run, *(word for override in overrides for word in ("--set", override))]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / run


def metrics(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 1e-3), ("bf16", 2e-2)])
@pytest.mark.parametrize("compile_", ["none", "layer"])
def test_quickstart_has_the_loss_curve_of_the_cpu(folder, compile_, dtype, tolerance):
    curves = []
    for backend, compiled in (("cpu", "none"), (BACKEND, compile_)):
        overrides = [*QUICKSTART, f"precision.dtype={dtype}", f"kernels.compile={compiled}"]
        run_dir = train(folder, "quickstart", backend, f"{backend}-{dtype}-{compile_}", overrides)
        curves.append([record["lm_loss"] for record in metrics(run_dir)])
    expected, found = curves
    assert len(found) == 30
    assert found == pytest.approx(expected, rel=tolerance)
    assert found[-1] < found[0] - 1


def test_a_miniature_of_gpt2_345m_learns_in_fp16_with_dropout(folder):
    if not (folder / "data").exists():  # this test alone
        train(folder, "quickstart", "cpu", "corpus", [*QUICKSTART, "train.train_iters=1"])
    run_dir = train(folder, "gpt2-345m", BACKEND, "miniature", MINIATURE)
    records = metrics(run_dir)
    assert sum(record["skipped_iterations"] for record in records) <= 3
    assert not any(record["nan_iterations"] for record in records)
    losses = [record["lm_loss"] for record in records if record["lm_loss"] is not None]
    assert losses[-1] < losses[0] - 1
    assert json.loads((run_dir / "environment.json").read_text())["kernels"]["backend"] == BACKEND
