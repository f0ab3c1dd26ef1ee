"""Each key of a DeepSpeed file becomes a key of the recipe, a notice, or an error."""

from __future__ import annotations

from functools import reduce

import pytest

STAGE_1 = {"zero_optimization": {"stage": 1}}
ADAM = {"type": "AdamW", "params": {"lr": 0.5, "weight_decay": 0.1}}
OFFLOAD = "zero_optimization.offload_optimizer"


def value(recipe, path):
    return reduce(getattr, path.split("."), recipe)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"gradient_clipping": 0.5}, {"optimizer.clip_grad": 0.5}),
        ({"bf16": {"enabled": True}, **STAGE_1}, {"precision.dtype": "bf16", "precision.grad_reduce_in_fp32": False}),
        (
            {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, **STAGE_1},
            {"precision.dtype": "bf16", "precision.grad_reduce_in_fp32": True},
        ),
        (
            {"bfloat16": {"enabled": True}, "communication_data_type": "fp32", **STAGE_1},
            {"precision.dtype": "bf16", "precision.grad_reduce_in_fp32": True},
        ),
        ({"data_types": {"param_dtype": "half"}, **STAGE_1}, {"precision.dtype": "fp16"}),
        ({"fp16": {"enabled": True, "loss_scale": 128}, **STAGE_1}, {"precision.loss_scale": 128.0}),
        ({"fp16": {"enabled": True, "initial_scale_power": -1}, **STAGE_1}, {"precision.initial_loss_scale": 0.5}),
        ({"optimizer": {"type": "Adam", "params": {"betas": [0.8, 0.95]}}}, {"optimizer.adam_beta2": 0.95}),
        ({"optimizer": {"type": "Adam", "params": {"eps": 1e-6}}}, {"optimizer.adam_eps": 1e-6}),
        ({"optimizer": {"type": "Adam"}}, {"optimizer.name": "adamw", "optimizer.weight_decay": 0.0}),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, {"optimizer.name": "adam"}),
        ({"optimizer": {"type": "adamw", "params": {"adam_w_mode": True}}}, {"optimizer.name": "adamw"}),
        ({"optimizer": {"type": "AdamW", "params": {"torch_adam": False}}}, {"optimizer.weight_decay": 0.0}),
        (
            {
                "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
                "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
            },
            {"engine.zero.offload_optimizer.cpu_adam": "torch", "optimizer.weight_decay": 0.01},
        ),
        ({"zero_optimization": True}, {"engine.zero.stage": 1}),
        ({"zero_optimization": {"stage": 3, "max_live_parameters": 5}}, {"engine.zero.stage3_max_live_parameters": 5}),
        ({"zero_optimization": {"stage": 3, "cpu_offload_param": True}}, {"engine.zero.offload_param.device": "cpu"}),
        ({"zero_optimization": {"stage": 3, "cpu_offload_params": True}}, {"engine.zero.offload_param.device": "cpu"}),
        (
            {"zero_optimization": {"stage": 2, "cpu_offload": True, "cpu_offload_use_pin_memory": False}},
            {"engine.zero.offload_optimizer.pin_memory": False, "engine.zero.offload_param.pin_memory": True},
        ),
        ({"zero_optimization": {"stage": 2, "cpu_offload": False}}, {"engine.zero.offload_optimizer.device": "none"}),
        ({"activation_checkpointing": {"partition_activations": False}}, {"recompute.granularity": "none"}),
        ({"fp16": {"enabled": "auto"}, "train_batch_size": "auto", "optimizer": None}, {"train.global_batch_size": 8}),
        ({}, {"engine.zero.stage": 0}),
    ],
)
def test_a_key_becomes_one_of_the_recipe(load, config, expected):
    recipe = load(config)
    assert {path: value(recipe, path) for path in expected} == expected


def test_partitioned_activations_are_saved_in_parts(load):
    more = {"parallel": {"tensor_model_parallel_size": 2}, "recompute": {"granularity": "full"}}
    recipe = load({"activation_checkpointing": {"partition_activations": True}}, **more)
    assert recipe.recompute.distribute_saved_activations


def test_required_keys_may_come_from_the_file(load):
    config = {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "optimizer": ADAM}
    recipe = load(config, without=("optimizer.lr", "train.micro_batch_size", "train.global_batch_size"))
    assert (recipe.optimizer.lr, recipe.train.global_batch_size) == (0.5, 4)


@pytest.mark.parametrize(
    ("config", "notice"),
    [
        (
            {"bf16": {"enabled": True}},
            "ds.json:3: bf16.enabled: also sets precision.grad_reduce_in_fp32: false, DeepSpeed's default.",
        ),
        (
            {"bfloat16": {"enabled": True}, "communication_data_type": "bf16"},
            "ds.json:3: bfloat16.enabled: the old name of bf16.enabled; it was read as bf16.enabled.",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"weight_decay": 0.1}}},
            (
                "ds.json:3: optimizer.type: DeepSpeed's Adam is AdamW unless adam_w_mode is false; "
                "it was read as optimizer.name: adamw."
            ),
        ),
        (
            {"optimizer": {"type": "AdamW"}},
            "ds.json:3: optimizer.type: also sets optimizer.weight_decay: 0.0, DeepSpeed's default.",
        ),
        (
            {"zero_optimization": False},
            "ds.json:2: zero_optimization: the old form; it was read as engine.zero.stage: 0.",
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "cpu_offload_use_pin_memory": True}},
            (
                "ds.json:7: zero_optimization.cpu_offload_use_pin_memory: deprecated in DeepSpeed; it was read as "
                "engine.zero.offload_param.pin_memory."
            ),
        ),
        (
            {"fp16": {"enabled": False}, "dump_state": False, "wandb": {"enabled": False, "team": "us"}},
            (
                "ds.json: these match pretrain's fixed behaviour: fp16.enabled: false, dump_state: false, "
                "wandb.enabled: false."
            ),
        ),
        (
            {"train_batch_size": 8.0, "zero_optimization": {"stage": 1, "reduce_bucket_size": 2e8}},
            (
                "ds.json: these were read as whole numbers: train_batch_size: 8, "
                "zero_optimization.reduce_bucket_size: 200000000."
            ),
        ),
    ],
)
def test_keys_read_in_another_way_are_reported(load, config, notice):
    assert load(config).notices == (notice,)


@pytest.mark.parametrize(
    ("config", "notice"),
    [
        (
            {"zero_optimization": {"stage": 2, "stage3_prefetch_bucket_size": 1000}},
            "stage3_prefetch_bucket_size: left out: no effect here; it needs engine.zero.stage: 3.",
        ),
        (
            {"zero_optimization": {"stage": 2, "allgather_partitions": False}},
            "allgather_partitions: left out: nothing in DeepSpeed 0.19 reads it, at any stage.",
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}, **STAGE_1},
            "torch_adam: left out: no effect here; it needs engine.zero.offload_optimizer.device: cpu or nvme.",
        ),
        (
            {"zero_optimization": {"stage": 2, "cpu_offload_use_pin_memory": True}},
            "cpu_offload_use_pin_memory: left out: nothing is offloaded.",
        ),
        (
            {"fp16": {"enabled": False, "hysteresis": 3}},
            "hysteresis: left out: no effect here; it needs precision.dtype: fp16 with a dynamic loss scale (no prec",
        ),
    ],
)
def test_keys_that_deepspeed_would_not_read_are_dropped_with_a_notice(load, config, notice):
    assert notice in "\n".join(load(config).notices)


def test_offload_that_the_stage_does_not_support_is_an_error(refused):
    config = {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}
    assert "engine.zero.offload_param: no effect here; it needs engine.zero.stage: 3." in refused(config)[0]


def test_plain_keys_need_no_notice(load):
    assert load({"train_batch_size": 8, "gradient_clipping": 0.5, **STAGE_1}).notices == ()


def test_the_recipe_overrides_defaults_of_deepspeed(load):
    config = {"fp16": {"enabled": True}, "optimizer": {"type": "AdamW"}, **STAGE_1}
    recipe = load(config, precision={"initial_loss_scale": 4}, optimizer={"weight_decay": 0.5})
    assert (recipe.precision.initial_loss_scale, recipe.optimizer.weight_decay, recipe.notices) == (4.0, 0.5, ())
    assert load({"fp16": {"enabled": True}, **STAGE_1}, precision={"loss_scale": 8}).notices == ()


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"gradient_cliping": 1}, "ds.json:2: gradient_cliping: unknown key. Did you mean 'gradient_clipping'?"),
        (
            {"zero_optimization": {"stage3_max_live_params": "auto"}},
            (
                "ds.json:3: zero_optimization.stage3_max_live_params: unknown key. "
                "Did you mean 'zero_optimization.stage3_max_live_parameters'?"
            ),
        ),
        (
            {"zero_optimization.stage": 1},
            "ds.json:2: 'zero_optimization.stage': unknown key. Did you mean 'zero_optimization.stage'?",
        ),
        ({"fp16": True}, "ds.json:2: fp16: True is not an object with keys."),
        ({"fp16": {"enabled": "yes"}}, "ds.json:3: fp16.enabled: 'yes' is not true or false."),
        (
            {"fp16": {"enabled": True, "initial_scale_power": 1.5}},
            "ds.json:4: fp16.initial_scale_power: 1.5 is not a whole number in range, the exponent of 2.",
        ),
        (
            {"data_types": {"grad_accum_dtype": "int8"}},
            "ds.json:3: data_types.grad_accum_dtype: 'int8' is not one of fp32, bf16 or fp16.",
        ),
        ({"optimizer": {"type": "Lamb"}}, "ds.json:3: optimizer.type: 'Lamb' is not one of Adam or AdamW."),
        (
            {"optimizer": {"params": {"lr": 0.1, "eps": 1}}},
            "ds.json:2: optimizer: without optimizer.type DeepSpeed reads no params (lr: 0.1, eps: 1). Give a type.",
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"adam_w_mode": False}}},
            (
                "ds.json:5: optimizer.params.adam_w_mode: false has no effect with optimizer.type AdamW; "
                "give Adam instead."
            ),
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"betas": 0.9}}},
            "ds.json:5: optimizer.params.betas: 0.9 is not a list of two numbers.",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}},
            (
                "ds.json:5: optimizer.params.max_grad_norm: 1.0: a recipe has no equivalent: DeepSpeed refuses it; "
                "gradient_clipping is its key. Delete it."
            ),
        ),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}},
            (
                "ds.json:2: scheduler: a recipe has no equivalent: section schedule of the recipe sets the learning "
                "rate. Delete it."
            ),
        ),
        ({"elasticity": {"enabled": False}}, "ds.json:2: elasticity: DeepSpeed has removed this. Delete it."),
        (
            {"tensorboard": {"enabled": True}},
            (
                "ds.json:2: tensorboard: a recipe has no equivalent: logging.loggers: [tensorboard] writes for "
                "TensorBoard. Delete it."
            ),
        ),
        (
            {"wall_clock_breakdown": True},
            (
                "ds.json:2: wall_clock_breakdown: true: a recipe has no equivalent: logging.log_timers: true times "
                "the phases of a step. Delete it."
            ),
        ),
        ({"prescale_gradients": 1}, "ds.json:2: prescale_gradients: 1: a recipe has no equivalent. Delete it."),
        (
            {"activation_checkpointing": {"number_checkpoints": 4}},
            "ds.json:3: activation_checkpointing.number_checkpoints: 4: a recipe has no equivalent. Delete it.",
        ),
        (
            {"zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True}},
            (
                "ds.json:4: zero_optimization.stage3_gather_fp16_weights_on_model_save: true: a recipe has no "
                "equivalent: nothing here calls save_16bit_model, which reads it. Delete it."
            ),
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
            (
                f"ds.json:6: {OFFLOAD}.ratio: 0.5: a recipe has no equivalent: the part left on the device would have "
                "no schedule and no checkpoint. Delete it."
            ),
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "cpu_adam": "torch"}}},
            (
                f"ds.json:6: {OFFLOAD}.cpu_adam: torch: a recipe has no equivalent: it is a key of the recipe: "
                "engine.zero.offload_optimizer.cpu_adam. Delete it."
            ),
        ),
        (
            {"gradient_accumulation_steps": 1.5},
            "ds.json:2: gradient_accumulation_steps: 1.5 is not a whole number of 1 or more.",
        ),
        (
            {"zero_optimization": {"stage": 4}},
            "ds.json:3: zero_optimization.stage: engine.zero.stage: 4 must be at most 3.",
        ),
        ({"train_batch_size": {}}, "ds.json:2: train_batch_size: train.global_batch_size: {} is not a whole number."),
    ],
)
def test_keys_that_cannot_be_translated_are_named(refused, config, line):
    assert line in refused(config, without=("train.global_batch_size",) if "train_batch_size" in config else ())


def test_all_mistakes_are_reported_at_once(refused):
    config = {"dump_state": True, "scheduler": {"type": "OneCycle"}, "zero_optimization": {"stage": 7}}
    assert [line.split(":")[1] for line in refused(config)] == ["2", "3", "7"]


def test_only_the_first_of_very_many_mistakes_are_shown(refused):
    lines = refused({f"wrong{number}": 1 for number in range(20)})
    assert (len(lines), lines[-1]) == (9, "... and 12 more.")


def test_an_offload_that_is_given_twice_is_refused(refused):
    zero = {"stage": 2, "cpu_offload": True, "offload_optimizer": {"device": "none"}}
    assert refused({"zero_optimization": zero}) == [
        (
            "ds.json:6: zero_optimization.offload_optimizer.device: none means engine.zero.offload_optimizer.device: "
            "none, but ds.json:4: zero_optimization.cpu_offload gives cpu. Change one, or delete it here."
        )
    ]
