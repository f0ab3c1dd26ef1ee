"""A tiny training through the command line in this process, and what it leaves."""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from pretrain.cli.main import main
from pretrain.recipe import load_recipe
from pretrain.tools.corpus.build import build_tokens

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = """
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, seq_length: 32, max_position_embeddings: 48}
tokenizer: {type: bytes}
data: {path: DATA, split: "80,10,10", num_workers: 0}
train: {micro_batch_size: 1, global_batch_size: 4, train_iters: 3, seed: 7}
optimizer: {lr: 0.01}
evaluation: {interval: 3, iters: 2}
logging: {tensorboard: false}
"""
OF_OTHER_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID")


def write_recipe(folder: Path) -> Path:
    """Write made-up text, its tokens and the recipe into a folder; return the recipe's path."""
    draw = random.Random(0)
    with (folder / "text.jsonl").open("w") as file:
        for _ in range(60):
            file.write(json.dumps({"text": " ".join(draw.choices(["abc", "de", "fghi", "j"], k=30))}) + "\n")
    recipe = folder / "tiny.yml"
    recipe.write_text(RECIPE.replace("DATA", str(folder / "text")))
    build_tokens([folder / "text.jsonl"], folder / "text", load_recipe(recipe).tokenizer, workers=1)
    return recipe


def call(*arguments: object) -> int:
    """Run `pretrain` in this process, which no other program started as a rank; return the exit code."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_OTHER_LAUNCHERS}
    with patch.dict(os.environ, kept, clear=True), pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def settings(*overrides: str) -> list[str]:
    """Return overrides as options."""
    return [word for override in overrides for word in ("--set", override)]


def evaluations(run_dir: Path) -> dict[str, dict[str, float]]:
    """Return loss and perplexity of each split, as the run's last evaluation left them in metrics.jsonl."""
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    keys = ("lm_loss", "ppl")
    return {record["split"]: {key: record[key] for key in keys} for record in records if record["kind"] == "eval"}


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return when each file and folder was changed, and the bytes of files."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (folder, *folder.rglob("*"))
    }
