"""A recipe written out completely is the same recipe."""

from __future__ import annotations

import copy

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import RecipeError
from pretrain.recipe import make_recipe, to_yaml
from recipe.smallest import SMALLEST

CHOICES = {
    "model.activation": ["gelu", "gelu_tanh", "swiglu"],
    "model.position_embedding_type": ["learned_absolute", "rope"],
    "model.init_method": ["normal", "small_init", "wang_init"],
    "model.output_layer_init_method": ["scaled_normal", "normal", "small_init", "wang_init"],
    "precision.dtype": ["fp32", "bf16", "fp16"],
    "precision.loss_scale": [None, 128],
    "parallel.tensor_model_parallel_size": [1, 2, 4],
    "parallel.pipeline_model_parallel_size": [1, 2],
    "parallel.sequence_parallel": [True, False],
    "parallel.use_distributed_optimizer": [True, False],
    "parallel.overlap_grad_reduce": [True, False],
    "parallel.overlap_param_gather": [True, False],
    "recompute.granularity": ["none", "selective", "full"],
    "recompute.distribute_saved_activations": [True, False],
    "schedule.lr_decay_style": ["constant", "linear", "cosine", "inverse-square-root", "WSD"],
    "schedule.lr_wsd_decay_iters": [None, 7],
    "schedule.lr_warmup_fraction": [None, 0.1],
    "engine.name": ["megatron", "deepspeed"],
    "engine.zero.stage": [0, 1, 2, 3],
    "engine.zero.contiguous_gradients": [True, False],
    "engine.zero.overlap_comm": [None, True, False],
    "engine.zero.allgather_bucket_size": [2e8],
    "engine.zero.stage3_model_persistence_threshold": [None, 5],
    "engine.zero.offload_optimizer.device": ["none", "cpu", "nvme"],
    "engine.zero.offload_optimizer.nvme_path": [None, "swap"],
    "engine.zero.offload_optimizer.pin_memory": [True, False],
    "engine.zero.offload_param.device": ["none", "cpu", "nvme"],
    "engine.zero.offload_param.nvme_path": [None, "swap"],
    "kernels.attention": ["auto", "flash", "triangle", "softmax", "mine"],
    "checkpoint.save": [True, False, "elsewhere"],
    "checkpoint.load": [None, "from"],
    "evaluation.interval": [0, 5],
    "evaluation.prompt": [None, "def f(x):\n    'ä # not a comment'"],
    "logging.loggers": [["tensorboard"], []],
}


@st.composite
def overrides(draw):
    """Some keys with possible values, compatible or not."""
    paths = draw(st.lists(st.sampled_from(sorted(CHOICES)), unique=True))
    return {path: draw(st.sampled_from(CHOICES[path])) for path in paths}


@given(overrides())
def test_the_complete_recipe_describes_the_same_run(chosen):
    data = copy.deepcopy(SMALLEST)
    for path, value in chosen.items():
        *sections, key = path.split(".")
        inner = data
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[key] = value
    try:
        recipe = make_recipe(data)
    except RecipeError:
        return
    again = make_recipe(yaml.safe_load(to_yaml(recipe)))
    assert to_yaml(again) == to_yaml(recipe)


def test_every_default_that_has_an_effect_is_written_out(make):
    dumped = yaml.safe_load(to_yaml(make()))
    assert dumped["model"]["ffn_hidden_size"] == 256
    assert dumped["optimizer"] == {
        "name": "adamw",
        "lr": 0.001,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": 1e-08,
        "exp_avg_dtype": "fp32",
        "exp_avg_sq_dtype": "fp32",
        "weight_decay": 0.01,
        "clip_grad": 1.0,
    }


@pytest.mark.parametrize("key", ["loss_scale_window", "rotary_base", "triangle_block_size", "vocab_file", "load"])
def test_keys_without_effect_are_not_written(make, key):
    assert key not in to_yaml(make())
