"""Settings that the DeepSpeed engine cannot serve are refused before anything is built."""

from __future__ import annotations

import pytest

from pretrain.recipe import make_recipe
from recipe.smallest import SMALLEST

STAGES_2 = "parallel.pipeline_model_parallel_size=2"


def zero(stage, **more):
    return {**SMALLEST, "engine": {"name": "deepspeed", "zero": {"stage": stage, **more}}}


@pytest.mark.parametrize("stage", [0, 1])
def test_a_pipeline_belongs_to_megatrons_engine(refusal, stage):
    assert refusal(STAGES_2, data=zero(stage)) == (
        f"--set {STAGES_2}: parallel.pipeline_model_parallel_size: 2 needs engine.name: megatron, where "
        "parallel.use_distributed_optimizer: true does what engine.zero.stage: 1 does here."
    )


@pytest.mark.parametrize(("stage", "split"), [(2, "gradients"), (3, "weights and gradients")])
def test_a_pipeline_does_not_go_with_split_gradients(refusal, stage, split):
    assert refusal(STAGES_2, "parallel.tensor_model_parallel_size=2", data=zero(stage)) == (
        f"--set {STAGES_2}: parallel.pipeline_model_parallel_size: 2 conflicts with engine.zero.stage: {stage}, "
        f"which splits the {split} of a pipeline stage while its other micro-batches still add to them. "
        "Nearest: pipeline_model_parallel_size: 1 with tensor_model_parallel_size: 4."
    )


def test_the_nearest_layout_is_one_that_the_model_allows(refusal):
    """16 ranks hold 4 heads as 4 x 4 data-parallel ones at best."""
    layout = "parallel={tensor_model_parallel_size: 4, pipeline_model_parallel_size: 4}"
    assert refusal(layout, "model.num_layers=4", data=zero(2)).endswith(
        "Nearest: pipeline_model_parallel_size: 1 with tensor_model_parallel_size: 4; "
        "16 does not divide model.num_attention_heads 4."
    )


def test_fp16_needs_zero(refusal):
    assert refusal("precision.dtype=fp16", data=zero(0)) == (
        "recipe: engine.zero.stage: 0 conflicts with precision.dtype: fp16: DeepSpeed scales the loss only with "
        "ZeRO. Give 1 to 3, or engine.name: megatron, which splits nothing either."
    )


@pytest.mark.parametrize(
    "precision",
    ["{initial_loss_scale: 3000, min_loss_scale: 0.5, hysteresis: 3, dtype: fp16}", "{loss_scale: 3000, dtype: fp16}"],
)
def test_any_loss_scale_is_accepted(precision):
    """The engine's is megatron-core's; DeepSpeed's own would take powers of two alone."""
    assert make_recipe(zero(1), [f"precision={precision}"]).precision.dtype == "fp16"


def test_stage_0_sums_gradients_in_the_dtype_of_the_weights(refusal):
    assert refusal("precision.dtype=bf16", data=zero(0)).endswith(
        "precision.grad_reduce_in_fp32: true (the default) needs engine.zero.stage 1 to 3 with bf16; at stage 0 "
        "DeepSpeed sums gradients in bf16. Give false, or a stage."
    )
    assert "precision.grad_reduce_in_fp32: true needs engine.zero.stage 1 to 3 with bf16;" in refusal(
        "precision={dtype: bf16, grad_reduce_in_fp32: true}", data=zero(0)
    )


@pytest.mark.parametrize(
    ("stage", "precision"),
    [
        (0, "{dtype: bf16, grad_reduce_in_fp32: false}"),
        (1, "{dtype: fp16}"),
        (0, "{dtype: fp32}"),
        (1, "{dtype: bf16}"),
        (3, "{dtype: fp16, grad_reduce_in_fp32: true}"),
    ],
)
def test_other_sums_of_gradients_are_taken(stage, precision):
    assert make_recipe(zero(stage), [f"precision={precision}"]).engine.zero.stage == stage


@pytest.mark.parametrize("stage", [1, 2])
def test_files_need_stage_3(refusal, stage):
    assert refusal(data=zero(stage, offload_optimizer={"device": "nvme", "nvme_path": "swap"})) == (
        "recipe: engine.zero.offload_optimizer.device: nvme needs engine.zero.stage: 3; "
        f"at stage {stage} DeepSpeed would keep everything in host memory, as with cpu."
    )


@pytest.mark.parametrize("section", ["offload_optimizer", "offload_param"])
def test_files_need_a_folder(refusal, section):
    assert refusal(data=zero(3, **{section: {"device": "nvme"}})) == (
        f"recipe: engine.zero.{section}.nvme_path: required with engine.zero.{section}.device: nvme."
    )


@pytest.mark.parametrize("stage", [1, 2])
def test_offload_needs_contiguous_gradients_below_stage_3(refusal, stage):
    scattered = {"contiguous_gradients": False, "offload_optimizer": {"device": "cpu"}}
    assert refusal(data=zero(stage, **scattered)) == (
        "recipe: engine.zero.contiguous_gradients: false conflicts with engine.zero.offload_optimizer at stage "
        f"{stage}, where DeepSpeed uses true."
    )
    assert make_recipe(zero(3, **scattered)).engine.zero.offload_optimizer.device == "cpu"


def test_offload_without_a_stage_is_refused(refusal):
    assert refusal(data=zero(0, offload_optimizer={"device": "cpu"})) == (
        "recipe: engine.zero.offload_optimizer: no effect here; it needs engine.zero.stage over 0."
    )


@pytest.mark.parametrize("stage", range(4))
def test_tensor_parallelism_goes_with_every_stage(stage):
    assert make_recipe(zero(stage), ["parallel.tensor_model_parallel_size=4"]).model_parallel_size == 4


def files(**options):
    """Return the options of a section whose tensors are in files."""
    return {"device": "nvme", "nvme_path": "swap", **options}


PIPELINED = {"pipeline_read": " for pipeline_read", "pipeline_write": " for pipeline_write"}


@pytest.mark.parametrize("ahead", [(), ("pipeline_read",), ("pipeline_write",), ("pipeline_read", "pipeline_write")])
def test_buffers_that_deepspeed_would_run_out_of_are_refused(refusal, ahead):
    needed = 4 * (1 + len(ahead))
    keys = dict.fromkeys(ahead, True)
    more = f", and as many again{' and'.join(PIPELINED[key] for key in ahead)}" if ahead else ""
    assert refusal(data=zero(3, offload_optimizer=files(buffer_count=needed - 1, **keys))) == (
        f"recipe: engine.zero.offload_optimizer.buffer_count: {needed - 1} is too few: a sub-group needs one each for "
        f"main weights, gradients and Adam's two moments{more}. Give at least {needed}."
    )
    assert make_recipe(zero(3, offload_optimizer=files(buffer_count=needed, **keys))).engine.zero.stage == 3


def test_weights_in_files_need_a_buffer(refusal):
    assert refusal(data=zero(3, offload_param=files(buffer_count=0))) == (
        "recipe: engine.zero.offload_param.buffer_count: 0 is too few: every weight is read through a buffer."
    )


@pytest.mark.parametrize(("dtype", "smallest"), [("fp32", 262144), ("bf16", 524288), ("fp16", 524288)])
def test_no_weight_that_stays_whole_is_in_a_file(refusal, dtype, smallest):
    whole = {"offload_param": files(), "stage3_param_persistence_threshold": smallest}
    assert refusal(f"precision.dtype={dtype}", data=zero(3, **whole)) == (
        f"recipe: engine.zero.stage3_param_persistence_threshold: {smallest} conflicts with "
        f"engine.zero.offload_param.device: nvme, which keeps weights of {smallest} elements (1 MiB) or more in files: "
        f"DeepSpeed runs out of buffers for those that stay whole, or mixes them up. Give less than {smallest}."
    )
    less = whole | {"stage3_param_persistence_threshold": smallest - 1}
    assert make_recipe(zero(3, **less), [f"precision.dtype={dtype}"]).engine.zero.stage == 3
