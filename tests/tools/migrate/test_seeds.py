"""Five trainings that people run become the recipes of this project, but for what is listed here with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pretrain.recipe import load_recipe
from pretrain.tools.migrate.migration import build_command, migrate
from pretrain.tools.migrate.setting import MigrateOptions
from pretrain.tools.migrate.sources.recognition import read_sources

SEEDS = Path(__file__).parent / "seeds"
RECIPES = Path(__file__).parents[3] / "recipes"

PATHS = {"tokenizer.vocab_file", "tokenizer.merge_file", "tokenizer.file", "data.path", "data.cache_path"}
"""Where files are is not the same."""

DEFINED = {"CORPORA": "data", "CACHES": "data", "1": "checkpoints", "2": "board", "3": "vocab.json", "4": "merges.txt"}


def migrated(*names: str, defined: dict[str, str] | None = None, **wishes: Any):
    sources = read_sources([str(SEEDS / name) for name in names], defined or {})
    return migrate(sources, MigrateOptions(**wishes))


def differences(recipe, name: str) -> dict[str, tuple[Any, Any]]:
    """Return keys in which a migrated recipe and one of this project differ: (migrated, ours)."""
    ours = load_recipe(RECIPES / name)
    return {
        path: values
        for path, values in _pairs(recipe.model_dump(), ours.model_dump(), "")
        if values[0] != values[1] and path not in PATHS
    }


def _pairs(one: Any, other: Any, path: str):
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from _pairs(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))
    else:
        yield path, (one, other)


CHECKPOINTS = {"checkpoint.save": ("checkpoints/gpt2", True), "checkpoint.load": ("checkpoints/gpt2", None)}
"""Ours saves into the run directory, and goes on from there with --resume."""


def test_gpt3_is_the_recipe_but_for_its_folders():
    found = migrated("seed1.sh", defined=DEFINED)
    assert differences(found.recipe, "gpt3.yml") == {
        "checkpoint.save": ("checkpoints", True),
        "checkpoint.load": ("checkpoints", None),
    }
    assert found.is_complete
    assert found.commands("gpt3.yml")[-1] == "pretrain run gpt3.yml --nproc 8 --nnodes 8 --rdzv HOST:29500"


def test_gpt2_on_one_device_has_the_values_of_the_script():
    found = migrated("seed2.sh").recipe
    assert differences(found, "gpt2-345m.yml") == {
        **CHECKPOINTS,
        # Another training of the same model: these are its own flags.
        "train.micro_batch_size": (4, 1),
        "train.global_batch_size": (8, 2),
        "data.split": ("949,50,1", "700,200,100"),
        "recompute.granularity": ("full", "none"),
        "checkpoint.save_interval": (500, 10000),
        "evaluation.interval": (100, 1000),
        "logging.log_interval": (10, 100),
        # No script states a loss.
        "evaluation.target_loss": (None, 5.75),
    }


def test_zero_3_trains_as_the_program_would_without_its_switch():
    found = migrated("seed2_zero3.sh")
    assert found.recipe.engine.name == "megatron"
    assert found.recipe.precision.initial_loss_scale == 2.0**32
    (line,) = [str(outcome) for outcome in found.outcomes if outcome.written == "--deepspeed_config"]
    assert "without --deepspeed the program does not read it" in line


def test_zero_3_as_it_was_meant_is_the_recipe():
    found = migrated("seed2_zero3.sh", as_meant=True)
    assert differences(found.recipe, "gpt2-345m-zero3.yml") == {**CHECKPOINTS, "evaluation.target_loss": (None, 5.7)}
    noted = {outcome.written: outcome.note for outcome in found.outcomes if "carried" in outcome.fate and outcome.note}
    assert set(noted) == {"zero_optimization.cpu_offload", "zero_optimization.reduce_bucket_size"}


def test_neox_20b_is_the_recipe():
    found = migrated("seed3.yml", devices=96)
    assert differences(found.recipe, "neox20b.yml") == {
        "checkpoint.save": ("./20B_checkpoints", True),
        "checkpoint.load": ("./20B_checkpoints", None),
        # Its port to other devices switches the triangle on by default, not by a setting.
        "kernels.attention": ("auto", "triangle"),
    }
    assert found.is_complete


def test_a_script_that_writes_its_deepspeed_file_is_the_recipe():
    found = migrated("seed4.sh")
    assert differences(found.recipe, "tiny-rampup.yml") == {
        **CHECKPOINTS,
        # A default of the program; the recipe's model is so small that reading needs no process.
        "data.num_workers": (2, 0),
    }
    assert found.is_complete


@pytest.mark.parametrize("name", ["seed5.sh", "seed5.log"])
def test_the_script_and_its_log_are_the_same_recipe(name):
    found = migrated(name)
    state = "/workspace/model/megatron-models/345m"
    assert differences(found.recipe, "gpt2-345m.yml") == {
        "checkpoint.save": (state, True),
        "checkpoint.load": (state, None),
        "evaluation.target_loss": (None, 5.75),
    }
    assert found.is_complete


BUILDS = {
    "seed1_preprocess.sh": "pretrain data build --input data/wikipedia.20220301.en.json --output-prefix "
    "data/wikipedia_20220301_en --tokenizer-type GPT2BPETokenizer --vocab-file gpt2-vocab.json --merge-file "
    "gpt2-merges.txt --append-eod --workers 8",
    "seed2_preprocess.sh": "pretrain data build --input oscar-1GB.jsonl --output-prefix meg-gpt2 --vocab-file "
    "gpt2-vocab.json --merge-file gpt2-merges.txt --tokenizer-type GPT2BPETokenizer --append-eod --workers 8",
    "seed3_preprocess.sh": "pretrain data build --input pile/00.jsonl,pile/01.jsonl,pile/02.jsonl,pile/03.jsonl "
    "--output-prefix tokens/pile_20B_tokenizer --tokenizer-type HFTokenizer --tokenizer-file "
    "tokenizer/20B_tokenizer.json --append-eod --workers 150",
    "seed4_preprocess.sh": "pretrain data build --input data/oscar-en-10k.jsonl --output-prefix "
    "data/meg-gpt2-oscar-en-10k --vocab-file data/gpt2-vocab.json --merge-file data/gpt2-merges.txt --tokenizer-type "
    "GPT2BPETokenizer --append-eod --workers 4",
}


@pytest.mark.parametrize("name", BUILDS)
def test_preprocessing_becomes_a_command_that_builds_the_same_files(name):
    (source,) = read_sources([str(SEEDS / name)], DEFINED)
    (arguments,) = source.preprocessing
    assert build_command(arguments)[0] == BUILDS[name]
