"""Whole runs through the command line, as a user starts them."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.checkpoint.folder import CheckpointFolder

ROOT = Path(__file__).parents[2]
PRETRAIN = [sys.executable, "-m", "pretrain.cli.main"]
TINY = [
    "model={num_layers: 2, hidden_size: 32, num_attention_heads: 4, seq_length: 32, hidden_dropout: 0.1}",
    "tokenizer={type: bytes}",
    "train={micro_batch_size: 2, global_batch_size: 4, train_iters: 40, seed: 7}",
    "schedule={lr_warmup_iters: 4, lr_decay_style: cosine}",
    "checkpoint={save_interval: 20}",
    "evaluation={interval: 20, iters: 2, prompt: 'ab cd', prompt_tokens: 8}",
    "logging={log_interval: 1}",
]


@pytest.fixture(scope="session")
def text_tokens(tmp_path_factory):
    """Prefix of a token file of bytes, built by the command from 400 documents of made-up words."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 6))) for _ in range(50)]
    with (folder / "text.jsonl").open("w") as file:
        for _ in range(400):
            file.write(json.dumps({"text": " ".join(draw.choices(words, k=draw.randint(20, 60)))}) + "\n")
    pretrain(
        *("data", "build", folder / "text.jsonl", "--output-prefix", folder / "text"),
        *("--tokenizer-type", "bytes", "--append-eod", "--workers", "1"),
    )
    return folder / "text_text_document"


def pretrain(*arguments, code=0, environment=None, timeout=1200):
    """Run the command in the repository's root; return what it printed on both streams."""
    done = subprocess.run(
        [*PRETRAIN, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def overrides(*settings):
    """Return the settings as `--set` options."""
    return [part for setting in settings for part in ("--set", setting)]


def tiny(tokens, run_dir, *settings):
    """Return the arguments of a run of the quickstart recipe, made tiny."""
    options = overrides(*TINY, f"data={{path: {tokens}, split: '90,5,5', num_workers: 0}}", *settings)
    return ["--backend", "cpu", "recipes/quickstart.yml", "--run-dir", run_dir, *options]


def metrics(run_dir):
    """Return the objects of metrics.jsonl."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def latest(run_dir):
    """Return the iteration of a run's latest checkpoint."""
    return CheckpointFolder(run_dir / "checkpoints").latest()
