"""A key that would have no effect is an error, if it was given."""

from __future__ import annotations

import pytest

from pretrain.recipe import make_recipe, to_yaml
from pretrain.recipe.checks.effect import OTHER_RULES as RULES
from pretrain.recipe.checks.effect import without_effect
from pretrain.recipe.recipe import keys_of_recipe

VALUES = {
    "kernels.rotary": "mine",
    "kernels.softmax": "mine",
    "model.moe_router_score_function": "sigmoid",
    "model.moe_router_load_balancing_type": "aux_loss",
    "model.moe_token_drop_policy": "position",
    "kernels.norm@head": "mine",
    "kernels.grouped_linear": "mine",
    "kernels.moe_permute": "mine",
    "kernels.router": "mine",
    "kernels.activation@expert": "mine",
    "kernels.activation@shared": "mine",
    "kernels.linear@router": "mine",
    "tokenizer.vocab_file": "vocab.json",
    "tokenizer.merge_file": "merges.txt",
    "tokenizer.file": "tokenizer.json",
    "tokenizer.vocab_size": 512,
    "schedule.lr_wsd_decay_style": "cosine",
    "recompute.method": "block",
    "checkpoint.local_dir": "copies",
    "data.cache_path": "cache",
    "data.split": "1,1",
    "data.split_by": "documents",
    "model.rotary_percent": 0.5,
    "parallel.pipeline_layers": [2],
    "model.rope_scaling_type": "yarn",
    "train.loss_spike.action": "skip",
    "optimizer.options": "{beta: 2}",
    "logging.logger_options": "{acme: {beta: 2}}",
    "optimizer.exp_avg_dtype": "bf16",
    "optimizer.exp_avg_sq_dtype": "bf16",
    "optimizer.muon_momentum": 0.5,
    "optimizer.muon_scale_mode": "shape_scaling",
    **dict.fromkeys(
        (key for key in keys_of_recipe() if key.startswith(("logging.wandb_", "logging.mlflow_", "logging.comet_"))),
        "name",
    ),
    "logging.comet_tags": ["name"],
    "evaluation.tasks_include_path": "tasks",
}
"""Values of keys that do not accept 2."""

SWITCHES = {
    "parallel.overlap_p2p_comm",
    "precision.fp16_lm_cross_entropy",
    "precision.fp8_wgrad",
    "precision.grad_reduce_in_fp32",
    "parallel.sequence_parallel",
    "parallel.overlap_param_gather",
    "recompute.distribute_saved_activations",
    "checkpoint.finetune",
    "checkpoint.async_save",
    "data.reset_position_ids",
    "model.add_qkv_bias",
    "model.moe_router_pre_softmax",
    "model.moe_router_enable_expert_bias",
    "model.use_rope_scaling",
    "model.yarn_correction_range_round_to_int",
    "optimizer.muon_use_nesterov",
}

SWITCHED_OFF = {
    "model.init_method_std": ["model.init_method=small_init", "model.output_layer_init_method=wang_init"],
    "schedule.min_lr": ["schedule.lr_decay_style=constant"],
    "optimizer.exp_avg_dtype": ["optimizer.name=muon"],
    "optimizer.exp_avg_sq_dtype": ["optimizer.name=muon"],
    "schedule.lr_decay_iters": ["schedule.lr_decay_style=constant"],
    "schedule.lr_decay_samples": [
        "schedule.lr_decay_style=constant",
        "train.train_samples=9",
        "train.train_iters=null",
    ],
    "checkpoint.save_interval": ["checkpoint.save=false"],
    "checkpoint.keep": ["checkpoint.save=false"],
    "checkpoint.local_interval": ["checkpoint.save=false", "checkpoint.local_dir=copies"],
    "data.reset_position_ids": ["model.position_embedding_type=rope"],
    "kernels.softmax": ["data.reset_attention_mask=true"],
    "data.cache_path": ["data.index=native"],
    "data.split": ["data.train_data_path=a", "data.valid_data_path=b"],
    "data.split_by": ["data.train_data_path=a", "data.valid_data_path=b"],
    "evaluation.iters": ["evaluation.interval=0"],
    "evaluation.target_loss": ["evaluation.interval=0"],
    "train.manual_gc_interval": ["train.manual_gc=false"],
    "train.check_replicas_interval": ["engine.name=deepspeed", "engine.zero.stage=3"],
    "logging.tensorboard_queue_size": ["logging.tensorboard=false"],
}
"""Settings under which a key of the smallest recipe has no effect."""

KEYS = [(key, rule) for rule in RULES for key in rule.keys]


def given(key):
    return "true" if key in SWITCHES else VALUES.get(key, 0.001 if key == "schedule.min_lr" else 2)


@pytest.mark.parametrize(("key", "rule"), KEYS, ids=[key for key, _ in KEYS])
def test_an_idle_key_is_refused_with_what_it_needs(refusal, key, rule):
    value = given(key)
    refused = refusal(*SWITCHED_OFF.get(key, []), f"{key}={value}")
    assert f"--set {key}={value}: {key}: no effect here; it needs {rule.needs}." in refused.splitlines()


@pytest.mark.parametrize("key", sorted(SWITCHES))
def test_an_idle_switch_may_be_given_as_off(make, key):
    assert to_yaml(make(f"{key}=false")) == to_yaml(make())


def test_idle_defaults_are_allowed(make):
    assert "precision.loss_scale_window" in without_effect(make())


@pytest.mark.parametrize(
    ("file", "override", "gone"),
    [
        ({"precision": {"dtype": "fp16", "loss_scale_window": 500}}, "precision.dtype=fp32", "loss_scale_window"),
        ({"evaluation": {"iters": 3}}, "evaluation.interval=0", "  iters:"),
        ({"evaluation": {"iters": 3}}, "evaluation={interval: 0}", "  iters:"),
        ({"data": {"path": "a", "split": "8,1,1"}}, "data={train_data_path: a, valid_data_path: b}", "split"),
        ({"kernels": {"attention": "triangle", "triangle_block_size": 64}}, "kernels.attention=softmax", "triangle"),
        ({"recompute": {"granularity": "full", "method": "block"}}, "recompute.granularity=none", "  method:"),
    ],
)
def test_keys_that_an_override_leaves_without_effect_are_dropped(smallest, file, override, gone):
    recipe = make_recipe({**smallest, **file}, [override])
    assert gone not in to_yaml(recipe)
    assert recipe == make_recipe(smallest, [override])


def test_an_override_of_another_key_does_not_drop_it(refusal, smallest):
    smallest["precision"] = {"dtype": "fp32", "loss_scale_window": 500}
    assert "precision.loss_scale_window: no effect here" in refusal("train.seed=3", data=smallest)
