"""The DeepSpeed files of two published tutorials, as they were written."""

from __future__ import annotations

import json

import pytest
import yaml

from pretrain.recipe.load import to_yaml

GPT2_345M = """\
{
"fp16": {
"enabled": true
    },
"zero_optimization": {
"stage": 3,
"allgather_partitions": true,
"allgather_bucket_size": 2e8,
"overlap_comm": true,
"reduce_scatter": true,
"reduce_bucket_size": 2e8,
"contiguous_gradients": true,
"cpu_offload": true
    }
}
"""

TINY_RAMPUP = """\
{
  "train_micro_batch_size_per_gpu": 1,
  "train_batch_size": 16,
  "gradient_clipping": 1.0,
  "zero_optimization": {
    "stage": 1
  },
  "fp16": {
    "enabled": true,
    "loss_scale": 0,
    "loss_scale_window": 500,
    "hysteresis": 2,
    "min_loss_scale": 1,
    "initial_scale_power": 12
  },
  "steps_per_print": 2000,
  "wall_clock_breakdown": false
}
"""

NO_BATCH = ("train.micro_batch_size", "train.global_batch_size")


def test_the_file_as_it_was_published_is_zero_3_with_the_optimizer_on_the_host(load):
    recipe = load(GPT2_345M)
    zero = recipe.engine.zero
    assert (recipe.precision.dtype, zero.stage, zero.offload_optimizer.device) == ("fp16", 3, "cpu")
    assert (zero.overlap_comm, zero.reduce_scatter, zero.contiguous_gradients) == (True, True, True)
    assert zero.reduce_bucket_size == 200_000_000
    assert recipe.notices == (
        (
            "ds.json:7: zero_optimization.allgather_partitions: left out: nothing in DeepSpeed 0.19 reads it, at any "
            "stage."
        ),
        (
            "ds.json:13: zero_optimization.cpu_offload: deprecated in DeepSpeed; it was read as "
            "engine.zero.offload_optimizer.device: cpu."
        ),
        (
            "ds.json: these were read as whole numbers: zero_optimization.allgather_bucket_size: 200000000, "
            "zero_optimization.reduce_bucket_size: 200000000."
        ),
        "ds.json:3: fp16.enabled: also sets precision.initial_loss_scale: 65536, DeepSpeed's default.",
        (
            "ds.json:8: zero_optimization.allgather_bucket_size: left out: no effect here; it needs "
            "engine.zero.stage: 1 or 2."
        ),
    )


@pytest.mark.parametrize("indent", [None, "\t"], ids=["one line", "tabs"])
def test_the_file_may_stand_in_an_override(load, indent):
    text = json.dumps(json.loads(GPT2_345M), indent=indent)
    assert load("{}", f"engine.deepspeed_config={text}") == load(GPT2_345M)


def test_the_file_may_stand_in_the_recipe(load):
    inline = {"engine": {"deepspeed_config": yaml.safe_load(GPT2_345M)}}
    recipe = load("{}", **inline)
    assert recipe == load(GPT2_345M)
    assert [notice.partition(": left out: ")[0] for notice in recipe.notices if "left out" in notice] == [
        "recipe.yml:23: zero_optimization.allgather_partitions",
        "recipe.yml:24: zero_optimization.allgather_bucket_size",
    ]


@pytest.mark.parametrize(
    ("inline", "line"),
    [
        ("{1: 2}", "--set engine.deepspeed_config={1: 2}: 1: unknown key."),
        ("{fp16: [1]}", "--set engine.deepspeed_config={fp16: [1]}: fp16: [1] is not an object with keys."),
        (
            "{zero_optimization: {stage: .nan}}",
            "zero_optimization.stage: engine.zero.stage: nan is not a whole number.",
        ),
        ("3", "3 is neither the path of a DeepSpeed JSON file nor an object with its keys."),
    ],
)
def test_a_malformed_file_or_name_is_refused_in_one_line(refused, inline, line):
    assert line in refused("{}", f"engine.deepspeed_config={inline}")[0]


def test_the_batch_ramp_goes_through_as_it_is(load):
    ramp = {"rampup_batch_size": "2 2 1_000", "train_samples": 10_000}
    recipe = load(TINY_RAMPUP, without=(*NO_BATCH, "train.train_iters"), train=ramp)
    assert (recipe.train.micro_batch_size, recipe.train.global_batch_size) == (1, 16)
    precision = recipe.precision
    assert (precision.dtype, precision.loss_scale, precision.initial_loss_scale) == ("fp16", None, 4096.0)
    assert (precision.loss_scale_window, precision.hysteresis, precision.min_loss_scale) == (500, 2, 1.0)
    assert (recipe.engine.zero.stage, recipe.optimizer.clip_grad) == (1, 1.0)
    assert recipe.notices == (
        "ds.json:16: steps_per_print: 2000 is not used; logging.log_interval says how often metrics are shown.",
        "ds.json: these match pretrain's fixed behaviour: wall_clock_breakdown: false.",
    )


@pytest.mark.parametrize("text", [GPT2_345M.replace('"stage": 3', '"stage": 2'), TINY_RAMPUP])
def test_the_resolved_recipe_holds_the_values_and_not_the_file(load, text):
    recipe = load(text, without=NO_BATCH if "train_batch_size" in text else ())
    dumped = yaml.safe_load(to_yaml(recipe))
    assert "deepspeed_config" not in dumped["engine"]
    assert dumped["engine"]["zero"]["stage"] == recipe.engine.zero.stage
