"""A run whose last iteration was taken before it began: it evaluates both splits at the end, and saves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cli.trained import call, evaluations, settings, write_recipe
from pretrain.checkpoint.folder import CheckpointFolder
from pretrain.tools.convert.registry import read_weights
from tools.convert import written

RECIPES = Path(__file__).parents[2] / "recipes"

pytestmark = pytest.mark.xdist_group("nothing to train")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def complete(recipe):
    """A complete run of 3 iterations."""
    assert call(recipe, "--run-dir", recipe.parent / "run") == 0
    return recipe.parent / "run"


@pytest.fixture
def run(recipe, tmp_path, capfd):
    """Run the recipe; return its new directory and the lines about checkpoints and losses."""

    def start(*overrides, arguments=()):
        capfd.readouterr()
        assert call(recipe, "--run-dir", tmp_path / "run", *settings(*overrides), *arguments) == 0
        lines = capfd.readouterr().out.splitlines()
        beginnings = ("weights", "continued", "iteration", "checkpoint:", "validation", "test", "done")
        return tmp_path / "run", [line.split(" | ")[0] for line in lines if line.startswith(beginnings)]

    return start


def test_a_complete_run_that_is_resumed_evaluates_once_more(recipe, complete, capfd):
    losses, metrics = evaluations(complete), (complete / "metrics.jsonl").read_text()
    assert call(recipe, "--run-dir", complete, "--resume") == 0
    out = capfd.readouterr().out
    for name, split in (("validation", "valid"), ("test", "test")):
        assert f"{name} at iteration 3/3 | loss {losses[split]['lm_loss']:.4f} | ppl " in out
    assert (complete / "metrics.jsonl").read_text() == metrics


def test_a_loaded_checkpoint_of_the_last_iteration_is_evaluated_and_saved(run, complete):
    run_dir, lines = run(f"checkpoint.load={complete}/checkpoints")
    assert lines == [
        f"continued from {complete}/checkpoints/iter_0000003",
        f"checkpoint: {run_dir}/checkpoints/iter_0000003",
        "validation at iteration 3/3",
        "test at iteration 3/3",
        "done: 3 iterations",
    ]
    assert evaluations(run_dir) == evaluations(complete)


@pytest.mark.full
def test_no_iterations_at_all_keep_the_schedule_of_the_checkpoint(run, complete, recipe, tmp_path):
    run_dir, lines = run(f"checkpoint.load={complete}/checkpoints", "train.train_iters=0", "optimizer.lr=0.5")
    assert lines[1:] == [
        f"checkpoint: {run_dir}/checkpoints/iter_0000003",
        "validation at iteration 3/3",
        "test at iteration 3/3",
        "done: 3 iterations",
    ]
    assert evaluations(run_dir) == evaluations(complete)
    further = tmp_path / "further"  # with the first training's schedule, as that one would go on
    assert call(recipe, "--run-dir", further, *settings(f"checkpoint.load={run_dir}/checkpoints")) == 0


@pytest.mark.full
def test_weights_alone_begin_at_iteration_0(run, complete):
    given = (f"checkpoint.load={complete}/checkpoints", "checkpoint.finetune=true", "train.train_iters=0")
    run_dir, lines = run(*given, "schedule.lr_warmup_iters=2")
    assert lines == [
        f"weights from {complete}/checkpoints/iter_0000003",
        f"checkpoint: {run_dir}/checkpoints/iter_0000000",
        "validation at iteration 0/0",
        "test at iteration 0/0",
        "done: 0 iterations",
    ]
    assert evaluations(run_dir) == evaluations(complete)


@pytest.mark.full
def test_without_a_checkpoint_fresh_weights_are_evaluated_and_saved(run):
    run_dir, lines = run("train.train_iters=0", "data.index=native")
    assert lines[-3:] == ["validation at iteration 0/0", "test at iteration 0/0", "done: 0 iterations"]
    assert CheckpointFolder(run_dir / "checkpoints").latest() == 0


@pytest.mark.full
def test_zero_takes_over_and_saves_the_same(run, complete):
    run_dir, _ = run(
        f"checkpoint.load={complete}/checkpoints", "train.train_iters=0", "engine={name: deepspeed, zero: {stage: 2}}"
    )
    assert evaluations(run_dir)["valid"]["lm_loss"] == pytest.approx(
        evaluations(complete)["valid"]["lm_loss"], rel=1e-6
    )


def test_the_recipe_of_the_release_of_2019_evaluates_it_and_saves(recipe, tmp_path, monkeypatch, capfd):
    """recipes/gpt2-345m-evaluate.yml, scaled down to a release of four layers."""
    monkeypatch.setattr(written, "VOCAB", 384)
    written.release(tmp_path / "released")
    sizes = ("num_layers=4", "hidden_size=32", "num_attention_heads=4", "seq_length=16", "max_position_embeddings=16")
    data = f"data={{path: {recipe.parent / 'text'}, split: '80,10,10', num_workers: 0}}"
    smaller = (*(f"model.{size}" for size in sizes), "tokenizer={type: bytes}", data, "evaluation.iters=1")
    given = settings(*smaller, f"checkpoint.load={tmp_path / 'released'}")
    assert call(RECIPES / "gpt2-345m-evaluate.yml", "--run-dir", tmp_path / "run", *given) == 0
    lines = capfd.readouterr().out.splitlines()
    assert f"weights from {tmp_path}/released/release" in lines
    assert "Megatron-LM, one file a rank: weights alone; the optimizer starts without state" in lines
    assert f"checkpoint: {tmp_path}/run/checkpoints/iter_0000000" in lines
    assert set(evaluations(tmp_path / "run")) == {"valid", "test"}
    ours = read_weights(tmp_path / "run", {})
    theirs = read_weights(tmp_path / "released", {"num_attention_heads": 4})
    for name, tensor in theirs.with_vocabulary(257).tensors.items():
        saved = ours.with_vocabulary(257).tensors[name]
        assert torch.equal(saved.whole(), tensor.whole().half()), name
