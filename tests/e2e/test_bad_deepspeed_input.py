"""Unsupported settings of the DeepSpeed engine are errors of two lines before anything starts, with a remedy."""

import json

import pytest

from e2e.conftest import ROOT, overrides
from e2e.test_bad_input import mistake

ZERO3 = "recipes/gpt2-345m-zero3.yml"
ZERO1 = "recipes/tiny-rampup.yml"


def refused(recipe, *settings):
    """Return the lines of the message."""
    return mistake("--backend", "cpu", recipe, *overrides(*settings)).splitlines()


@pytest.mark.parametrize(
    ("recipe", "setting", "words"),
    [
        (
            ZERO3,
            "parallel.pipeline_model_parallel_size=2",
            [
                "parallel.pipeline_model_parallel_size: 2 conflicts with engine.zero.stage: 3",
                "Nearest: pipeline_model_parallel_size: 1 with tensor_model_parallel_size: 8.",
            ],
        ),
        (
            ZERO1,
            "parallel.pipeline_model_parallel_size=2",
            ["needs engine.name: megatron", "parallel.use_distributed_optimizer: true"],
        ),
        (
            "recipes/quickstart.yml",
            "engine={name: deepspeed, zero: {offload_optimizer: {device: cpu}}}",
            ["engine.zero.offload_optimizer: no effect here; it needs engine.zero.stage over 0"],
        ),
        (
            ZERO3,
            "engine.zero.offload_param.device=nvme",
            ["engine.zero.offload_param.nvme_path: required with engine.zero.offload_param.device: nvme"],
        ),
        (
            ZERO1,
            "engine.zero.stage3_prefetch_bucket_size=1",
            ["stage3_prefetch_bucket_size: no effect here; it needs engine.zero.stage: 3"],
        ),
        (ZERO1, "parallel.use_distributed_optimizer=true", ["no effect here; it needs engine.name: megatron"]),
        (ZERO1, "engine.zero.cpu_offload=true", ["It is written engine.zero.offload_optimizer: {device: cpu}"]),
    ],
)
def test_a_combination_that_does_not_work(recipe, setting, words):
    (line,) = refused(recipe, setting)
    assert line.startswith(f"--set {setting}: ")
    assert all(word in line for word in words)


@pytest.mark.full
def test_a_deepspeed_file_that_contradicts_the_recipe_names_both_places(tmp_path):
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}}, indent=1))
    (line,) = refused(ZERO1, f"engine={{name: deepspeed, deepspeed_config: {file}}}")
    contradicted = f"{ZERO1}:{line_of('micro_batch_size: 1')} gives 1. Change one, or delete it here."
    assert line == f"{file}:2: train_micro_batch_size_per_gpu: 4 means train.micro_batch_size: 4, but {contradicted}"


def line_of(text):
    """Return the line of the recipe that holds the text."""
    return next(number for number, line in enumerate((ROOT / ZERO1).read_text().splitlines(), 1) if text in line)
