"""A place to call `pretrain run` in, whose training is faked."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from unittest.mock import patch

import pytest

from plugins.fake_site import reference, site
from pretrain.cli.main import main
from pretrain.exit_codes import End
from pretrain.recipe import load_recipe, to_yaml
from pretrain.tools.corpus.build import build_tokens

__all__ = ["reference", "site"]

RECIPE = """
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, seq_length: 8}
tokenizer: {type: bytes}
data: {path: corpus, split: "80,10,10"}
train: {micro_batch_size: 1, global_batch_size: 4, train_iters: 10}
optimizer: {lr: 0.001}
"""
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch, site):
    """A working directory with a recipe, with one device, outside of any launcher."""
    site.backend("fake")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yml").write_text(RECIPE)
    (tmp_path / "text.jsonl").write_text('{"text": "some words"}\n' * 20)
    section = load_recipe(tmp_path / "tiny.yml").tokenizer
    build_tokens([Path("text.jsonl")], Path("corpus"), section, workers=1)
    Path("text.jsonl").unlink()
    kept = {name: value for name, value in os.environ.items() if name not in TORCHRUN and "SLURM" not in name}
    with patch.dict(os.environ, kept, clear=True):
        yield tmp_path


@pytest.fixture
def trainings(monkeypatch):
    """What the training was called with; it writes recipe.yml, or raises what is in `error`."""
    calls = []

    def train(recipe, **options):
        calls.append({"recipe": recipe, **options})
        if trainings.error:
            raise trainings.error
        options["run_dir"].mkdir(parents=True, exist_ok=True)
        (options["run_dir"] / "recipe.yml").write_text(to_yaml(recipe))
        return End()

    trainings = types.SimpleNamespace(calls=calls, error=None)
    monkeypatch.setitem(sys.modules, "pretrain.training.run", types.SimpleNamespace(train=train))
    return trainings


@pytest.fixture
def call(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["tiny.yml", "--backend", "fake", *arguments])
        return ended.value.code, *capsys.readouterr()

    return run
