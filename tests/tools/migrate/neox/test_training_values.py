"""Values of optimizer, schedule, precision, layout and ZeRO that several settings of GPT-NeoX make together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import MigrateError
from pretrain.tools.migrate.neox import parallel
from pretrain.tools.migrate.setting import Setting, Settings
from tools.migrate.neox.small import small_neox

PROGRAM = small_neox()
ADAM = {"optimizer": {"type": "Adam", "params": {"lr": 6e-4, "betas": [0.9, 0.95], "eps": 1e-7}}}


# optimizer and schedule


def test_adam_is_adamw(value):
    keys = ("name", "lr", "adam_beta1", "adam_beta2", "adam_eps", "weight_decay", "clip_grad")
    found = {key: value(f"optimizer.{key}", **ADAM) for key in keys}
    assert found == {
        "name": "adamw",
        "lr": 6e-4,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "adam_eps": 1e-7,
        "weight_decay": 0.1,
        "clip_grad": 1.0,
    }


def test_adam_with_coupled_weight_decay(value):
    assert value("optimizer.name", optimizer={"type": "adam", "params": {"adam_w_mode": False}}) == "adam"


def test_an_optimizer_without_a_learning_rate_has_gpt_neox_s(work):
    assert work("optimizer.lr", optimizer={"type": "Adam", "params": {}}).value == 0.001
    assert work("optimizer.lr") is None
    assert work("optimizer.lr", optimizer={"params": {"lr": 0.25}}).value == 0.25


@pytest.mark.parametrize("kind", ["OneBitAdam", "sm3", "madgrad_wd", "sgd", "lion"])
def test_other_optimizers_are_said_to_be_missing(work, kind):
    found = work("optimizer.name", optimizer={"type": kind, "params": {"lr": 1.0}})
    assert found.lost == (("optimizer.type", f"{kind} is not supported; adamw is used instead"),)


def test_weight_decay_twice_is_refused(work):
    with pytest.raises(MigrateError, match=r"^x.yml:3: optimizer.params.weight_decay: GPT-NeoX also gives Adam"):
        work("optimizer.weight_decay", optimizer={"type": "Adam", "params": {"weight_decay": 0.1}})


def test_betas_are_two_numbers(work):
    with pytest.raises(MigrateError, match=r"optimizer.params.betas: 0.9 is not a list of two numbers"):
        work("optimizer.adam_beta1", optimizer={"type": "Adam", "params": {"betas": 0.9}})


def test_clipping_that_deepspeed_is_not_told_of_has_a_note(work):
    assert "does not pass its default 1.0 to DeepSpeed" in work("optimizer.clip_grad", gradient_clipping=1.0).note
    assert work("optimizer.clip_grad", gradient_clipping=0.5).note == ""


def test_the_decay_is_stated_or_a_part_of_the_training(work):
    assert work("schedule.lr_decay_iters", train_iters=100, lr_decay_iters=80).value == 80
    assert work("schedule.lr_decay_iters", train_iters=105, lr_decay_fraction=0.9).value == 94
    both = work("schedule.lr_decay_iters", train_iters=100, lr_decay_iters=80, lr_decay_fraction=0.5)
    assert (both.value, both.idle[0][0]) == (80, "lr_decay_fraction")
    assert work("schedule.lr_decay_iters", train_iters=100) is None


@pytest.mark.parametrize("part", [1e308, -1, float("inf"), 10**400])
def test_a_decay_out_of_range_is_refused(work, part):
    with pytest.raises(MigrateError, match=r"^x.yml:3: lr_decay_fraction: "):
        work("schedule.lr_decay_iters", train_iters=100, lr_decay_fraction=part)
    with pytest.raises(MigrateError, match="train_iters: a number of 401 digits is out of range"):
        work("schedule.lr_decay_iters", train_iters=10**400, lr_decay_fraction=0.5)


@pytest.mark.parametrize(
    ("stated", "here", "difference"),
    [
        ({}, "linear", ""),
        ({"lr_decay_style": "cosine", "min_lr": 1e-5}, "cosine", ""),
        ({"lr_decay_style": "constant", "min_lr": 1e-5}, "constant", ""),
        ({"min_lr": 1e-5}, "linear", "holds it at min_lr"),
        ({"lr_decay_style": "cosine", "train_iters": 9, "lr_decay_iters": 5}, "cosine", "rise again after iteration 5"),
        ({"lr_decay_style": "cosine", "version": "2023.05"}, "cosine", "a warm-up longer"),
        ({"lr_decay_style": "cosine", "version": "2023.10"}, "cosine", ""),
        ({"lr_decay_style": "exponential"}, "linear", "exponential, a halving"),
    ],
)
def test_what_is_different_about_the_schedule_is_said(work, stated, here, difference):
    found = work("schedule.lr_decay_style", **stated)
    assert found.value == here
    assert difference in found.lost[0][1] if difference else not found.lost


# precision


@pytest.mark.parametrize(
    ("stated", "dtype"),
    [
        ({}, "fp32"),
        ({"precision": "fp16"}, "fp16"),
        ({"precision": "bfloat16"}, "bf16"),
        ({"fp16": {"enabled": True}}, "fp16"),
        ({"fp16": {"enabled": False}}, "fp32"),
        ({"fp16": {"enabled": True, "type": "bfloat16"}}, "fp16"),
        ({"fp16": {"enabled": True, "type": "bfloat16"}, "version": "2.0"}, "bf16"),
        ({"fp16": {"enabled": True}, "version": "2.0"}, "fp16"),
        ({"precision": "bfloat16", "version": "2.0"}, "bf16"),
        ({"precision": "fp16", "version": "2.0"}, "fp32"),
        ({"version": "2.0"}, "fp32"),
        ({"bf16": {"enabled": True}, "precision": "bfloat16"}, "bf16"),
        ({"deepspeed_extra_args": {"bf16": {"enabled": True}}}, "bf16"),
    ],
)
def test_dtype(value, stated, dtype):
    assert value("precision.dtype", **stated) == dtype


def test_a_type_of_fp16_that_is_not_read_is_said(work):
    fp16 = {"enabled": True, "type": "bfloat16"}
    assert work("precision.dtype", fp16=fp16).lost[0][1].endswith("trains in bf16: --from gpt-neox-2.0")
    assert work("precision.dtype", fp16=fp16, version="2.0").lost == ()


def test_a_precision_that_the_object_fp16_overrules_is_said(work):
    found = work("precision.dtype", precision="fp16", version="2.0")
    assert found.idle == (("precision", "GPT-NeoX 2.0 trains in fp32, because the object fp16 decides there"),)


@pytest.mark.parametrize(
    "stated",
    [{"precision": "fp32", "fp16": {"enabled": True}}, {"bf16": {"enabled": True}, "fp16": {"enabled": True}}],
)
def test_two_dtypes_are_refused(value, stated):
    with pytest.raises(MigrateError, match=r"says .*, .* says"):
        value("precision.dtype", **stated)


def test_the_dynamic_loss_scale(value):
    fp16 = {"enabled": True, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 500, "hysteresis": 3}
    keys = ("loss_scale", "initial_loss_scale", "loss_scale_window", "hysteresis", "min_loss_scale")
    assert [value(f"precision.{key}", fp16=fp16) for key in keys] == [None, 4096.0, 500, 3, None]


def test_the_dynamic_loss_scale_starts_at_deepspeed_s(work):
    found = work("precision.initial_loss_scale", precision="fp16")
    assert (found.value, found.note) == (65536.0, "2 to the power of 16, DeepSpeed's default")


def test_a_fixed_loss_scale_leaves_the_others_without_effect(work):
    fp16 = {"enabled": True, "loss_scale": 128, "hysteresis": 3}
    assert work("precision.loss_scale", fp16=fp16).value == 128
    assert work("precision.hysteresis", fp16=fp16).idle == (("fp16.hysteresis", "the loss scale is fixed"),)
    assert work("precision.initial_loss_scale", fp16=fp16) is None


@pytest.mark.parametrize(
    ("stated", "in_fp32"),
    [
        ({"precision": "fp16"}, False),
        ({"precision": "bfloat16"}, False),
        ({"precision": "bfloat16", "data_types": {"grad_accum_dtype": "fp32"}}, True),
        ({"precision": "bfloat16", "fp32_allreduce": True}, True),
        ({"precision": "fp32", "fp32_allreduce": True}, None),
    ],
)
def test_sum_of_gradients(value, stated, in_fp32):
    assert value("precision.grad_reduce_in_fp32", **stated) is in_fp32


def test_tensor_parallel_sums_keep_their_dtype(work):
    stated = {"precision": "bfloat16", "fp32_allreduce": True, "model_parallel_size": 2}
    assert work("precision.grad_reduce_in_fp32", **stated).lost[0][0] == "fp32_allreduce"


# layout and recomputation


def test_sizes_of_0_are_1(value):
    assert value("parallel.tensor_model_parallel_size", model_parallel_size=0) == 1
    assert value("parallel.pipeline_model_parallel_size") == 1


@given(st.integers(1, 60), st.integers(1, 12))
def test_stages_have_as_many_layers_but_for_one(layers, stages):
    stated = {"num_layers": layers, "pipe_parallel_size": stages}
    found = parallel.pipeline_layers(Settings(PROGRAM, {name: Setting(name, v, name) for name, v in stated.items()}))
    if layers % stages == 0 or layers < stages:
        assert found is None
    else:
        assert (sum(found.value), len(found.value)) == (layers, stages)
        assert max(found.value) - min(found.value) == 1


def test_recomputation(work, value):
    stated = {"checkpoint_activations": True, "checkpoint_num_layers": 4, "num_layers": 24, "pipe_parallel_size": 4}
    found = [value(f"recompute.{key}", **stated) for key in ("granularity", "method", "num_layers")]
    assert found == ["full", "uniform", 2]
    ((name, change),) = work("recompute.num_layers", **stated).lost
    assert (name, change[:30]) == ("checkpoint_num_layers", "4 does not divide the layers o")
    assert work("recompute.num_layers", **stated | {"checkpoint_num_layers": 3}).lost == ()
    assert value("recompute.granularity") == "none"


@pytest.mark.parametrize(
    ("stated", "split"),
    [
        ({"checkpoint_activations": True, "model_parallel_size": 2}, True),
        ({"checkpoint_activations": True}, None),
        ({"model_parallel_size": 2}, None),
    ],
)
def test_kept_activations_are_split_where_there_are_ranks_to_split_them(work, stated, split):
    found = work("recompute.distribute_saved_activations", partition_activations=True, **stated)
    assert (found.value, bool(found.idle)) == (split, not split)


def test_sequence_parallelism_needs_ranks(work):
    assert work("parallel.sequence_parallel", sequence_parallel=True, model_parallel_size=2).value is True
    assert work("parallel.sequence_parallel", sequence_parallel=True).idle[0][0] == "sequence_parallel"


# ZeRO

OURS = ("parallel.use_distributed_optimizer", "parallel.overlap_grad_reduce", "parallel.ddp_bucket_size", "engine.name")


@pytest.mark.parametrize(
    ("zero_optimization", "here"),
    [
        ({}, (False, None, None, "megatron")),
        ({"stage": 0, "overlap_comm": True}, (False, None, None, "megatron")),
        ({"stage": 1, "reduce_bucket_size": 9}, (True, False, None, "megatron")),
        ({"stage": 1, "overlap_comm": True, "reduce_bucket_size": 5e8}, (True, True, 500_000_000, "megatron")),
        ({"stage": 1, "cpu_offload": False}, (True, False, None, "megatron")),
        ({"stage": 1, "cpu_offload": True}, (None, None, None, "deepspeed")),
        ({"stage": 2, "overlap_comm": True}, (None, None, None, "deepspeed")),
        ({"stage": 3, "reduce_bucket_size": 9}, (None, None, None, "deepspeed")),
    ],
)
def test_stages_and_engines(value, zero_optimization, here):
    assert tuple(value(key, zero_optimization=zero_optimization) for key in OURS) == here


def test_keys_of_zero_3(value):
    given_ = {
        "stage": 3,
        "reduce_bucket_size": 5e8,
        "prefetch_bucket_size": 7,
        "stage3_max_live_parameters": 8,
        "offload_optimizer": {"device": "nvme", "nvme_path": "ssd"},
        "cpu_offload_param": True,
        "cpu_offload_use_pin_memory": False,
    }
    found = {key: value(key, zero_optimization=given_) for key in parallel.FUNCTIONS if key.startswith("engine.")}
    assert {key: value for key, value in found.items() if value is not None} == {
        "engine.name": "deepspeed",
        "engine.zero.stage": 3,
        "engine.zero.reduce_bucket_size": 500_000_000,
        "engine.zero.stage3_prefetch_bucket_size": 7,
        "engine.zero.stage3_max_live_parameters": 8,
        "engine.zero.offload_optimizer.device": "nvme",
        "engine.zero.offload_optimizer.nvme_path": "ssd",
        "engine.zero.offload_optimizer.pin_memory": False,
        "engine.zero.offload_param.device": "cpu",
        "engine.zero.offload_param.pin_memory": False,
    }


def test_what_megatron_s_optimizer_does_not_read_is_said(work):
    found = work("engine.zero.contiguous_gradients", zero_optimization={"stage": 1, "contiguous_gradients": True})
    assert (found.value, found.idle[0][0]) == (None, "zero_optimization.contiguous_gradients")


def test_adam_of_the_host(value):
    stated = {"optimizer": {"type": "cpu_adam", "params": {}}, "zero_optimization": {"stage": 2, "cpu_offload": True}}
    assert value("engine.zero.offload_optimizer.cpu_adam", **stated) == "deepspeed"
    assert value("optimizer.name", **stated) == "adamw"


def test_a_stage_is_0_to_3(work):
    with pytest.raises(MigrateError, match=r"^x.yml:3: zero_optimization.stage: 4 is not one of 0 to 3\."):
        work("engine.name", zero_optimization={"stage": 4})
