"""A tokenizer file that was replaced by one of the same size: a checkpoint's weights do not know its tokens."""

from __future__ import annotations

import shutil

import pytest

from cli.trained import call, settings, write_recipe
from pretrain.data.tokenizers.characters import train_characters

FEW = settings("train.train_iters=2", "evaluation.interval=0")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run whose tokenizer and token file were made again, with a character in the place of another."""
    folder = tmp_path_factory.mktemp("replaced")
    recipe, tokenizer = write_recipe(folder), folder / "tokenizer.json"
    recipe.write_text(recipe.read_text().replace("{type: bytes}", f"{{type: huggingface, file: {tokenizer}}}"))
    recipe.write_text(recipe.read_text().replace(f"{folder}/text,", f"{folder}/text_text_document,"))

    def make(alphabet):
        train_characters([alphabet], tokenizer, unknown=True, force=True)
        build = ("data", "build", folder / "text.jsonl", "--output-prefix", folder / "text", "--force")
        assert call(*build, "--tokenizer-file", tokenizer) == 0

    make("abcdefghij k")
    assert call(recipe, "--run-dir", folder / "run", *FEW) == 0
    shutil.copy(tokenizer, folder / "first.json")
    make("Abcdefghij k")
    return folder / "run"


@pytest.fixture
def refused(run_dir, capfd):
    """Check that a command is refused, and says why."""
    why = f"{run_dir.parent}/tokenizer.json is not the tokenizer that {{}} was trained with: was the file replaced?\n"

    def check(*arguments, checkpoint=run_dir / "checkpoints/iter_0000002"):
        assert call(*arguments) == 2
        assert why.format(checkpoint) in capfd.readouterr().err

    return check


pytestmark = pytest.mark.xdist_group("replaced tokenizer")


def test_neither_text_nor_losses_nor_a_resume_comes_of_it(refused, run_dir):
    refused("generate", run_dir, "--prompt", "a")
    refused("evaluate", run_dir)
    refused(run_dir.parent / "tiny.yml", "--run-dir", run_dir, "--resume", *settings("train.train_iters=3"))
    loads = settings(f"checkpoint.load={run_dir}/checkpoints", "evaluation.interval=0", "train.train_iters=3")
    refused(run_dir.parent / "tiny.yml", "--run-dir", run_dir.parent / "other", *loads)


def test_an_export_has_the_tokenizer_of_the_training_or_the_one_that_is_named(refused, run_dir, tmp_path, capfd):
    convert = ("checkpoint", "convert", run_dir, tmp_path / "hf", "--to", "huggingface")
    refused(*convert)
    assert not (tmp_path / "hf").exists()
    assert call(*convert, "--tokenizer", run_dir.parent / "first.json") == 0
    assert "do both give the same ids?" not in capfd.readouterr().err
    assert call(*convert, "--force", "--tokenizer", run_dir.parent / "tokenizer.json") == 0
    assert "it is not the tokenizer of the training: do both give the same ids?" in capfd.readouterr().err
    ours = ("checkpoint", "convert", run_dir / "checkpoints", tmp_path / "ours", "--to", "pretrain")
    assert call(*ours) == 0
    load = ("evaluate", run_dir.parent / "tiny.yml", "--load")
    refused(*load, tmp_path / "ours", checkpoint=tmp_path / "ours/iter_0000002")
    named = ("--tokenizer", run_dir.parent / "tokenizer.json")  # a user who knows that it gives the same tokens
    assert call(*ours[:3], tmp_path / "named", *ours[4:], *named) == 0
    assert call(*load, tmp_path / "named") == 0


def test_its_weights_alone_can_be_trained_on(run_dir, capfd):
    taken = settings(f"checkpoint.load={run_dir}/checkpoints", "checkpoint.finetune=true")
    assert call(run_dir.parent / "tiny.yml", "--run-dir", run_dir.parent / "finetuned", *FEW, *taken) == 0
    assert "the weights were trained with another tokenizer" in capfd.readouterr().out
