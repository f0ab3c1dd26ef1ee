"""The bound that the launcher asks: hand-calculated, and never above what a formula with more in it gives."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.launch.placement import least_memory
from pretrain.recipe import make_recipe
from pretrain.recipe.layout import lay_out
from pretrain.report.flops import parameter_count
from tools.plan.made_plan import RECIPE

LAYER = 4 * 64 * 64 + 4 * 64 + 2 * 4 * 64 * 64 + 4 * 64 + 64 + 4 * 64
"""Parameters of a layer of width 64: attention, MLP, their biases, two norms."""
NORM = 2 * 64
POSITIONS = 32 * 64
ZERO = "engine.zero.stage="
DEEPSPEED = "engine.name=deepspeed"
HALF = "precision.dtype=fp16"
ONE_STAGE = "parallel.pipeline_model_parallel_size=1"


def bound(world_size, *overrides):
    recipe = make_recipe(RECIPE, overrides, source="tiny.yml")
    return least_memory(recipe, lay_out(recipe, world_size))


def zero(stage, *overrides):
    return bound(4, ONE_STAGE, HALF, DEEPSPEED, f"{ZERO}{stage}", *overrides)


def test_a_stage_without_the_ends_of_the_model_holds_its_layers_alone():
    assert bound(4) == 2 * LAYER * (4 + 4 + 8)


def test_the_stage_with_most_layers_counts():
    assert bound(4, "parallel.pipeline_layers=[1,5,1,1]") == 5 * LAYER * 16


def test_one_stage_holds_positions_and_the_last_norm_but_the_vocabulary_is_not_known():
    assert bound(1, ONE_STAGE) == (8 * LAYER + POSITIONS + NORM) * 16


def test_tensor_parallelism_divides_everything():
    one, two = bound(1, ONE_STAGE), bound(2, ONE_STAGE, "parallel.tensor_model_parallel_size=2")
    assert two == one // 2


def test_experts_are_divided_by_their_own_layout():
    experts = ("model.num_experts=4", "model.moe_router_score_function=sigmoid", "model.add_bias_linear=false")
    whole = bound(4, ONE_STAGE, *experts)
    divided = bound(4, ONE_STAGE, *experts, "parallel.expert_model_parallel_size=4")
    assert whole - divided == 8 * (4 - 1) * 2 * 64 * 256 * 16


def test_the_stage_with_most_experts_counts_wherever_it_is():
    """Layer 5, of stage 2, alone has experts: four of two matrices, and a router, for one MLP."""
    experts = ("model.num_experts=4", "model.first_k_dense_replace=1", "model.moe_layer_freq=5")
    dense = 4 * 64 * 64 + 2 * 4 * 64 * 64 + 2 * 128
    assert bound(4, *experts, "model.add_bias_linear=false") == (2 * dense + 3 * 2 * 64 * 256 + 4 * 64) * 16


@pytest.mark.parametrize(
    ("overrides", "each"),
    [
        ((), 4 + 4 + 8),
        (("precision.dtype=fp16",), 2 + 2 + 12 + 4),
        (("precision.dtype=bf16",), 2 + 4 + 12),
        (("precision.dtype=bf16", "precision.grad_reduce_in_fp32=false"), 2 + 2 + 12 + 4),
        (("precision.dtype=fp16", "parallel.use_distributed_optimizer=true"), 2 + 2 + (12 + 4) / 4),
    ],
)
def test_precision_and_the_distributed_optimizer_decide_on_the_bytes_of_a_parameter(overrides, each):
    assert bound(16, *overrides) == 2 * LAYER * each


@pytest.mark.parametrize(
    ("stage", "each"),
    [(1, 2 + (2 + 12) / 4), (2, 2 + (2 + 12) / 4), (3, (2 + 2 + 12) / 4)],
)
def test_zero_divides_what_its_stage_says(stage, each):
    assert zero(stage) == (8 * LAYER + POSITIONS + NORM) * each


def test_zero_0_in_bf16_divides_nothing():
    assert (
        bound(4, ONE_STAGE, "precision.dtype=bf16", "precision.grad_reduce_in_fp32=false", DEEPSPEED)
        == (8 * LAYER + POSITIONS + NORM) * 16
    )


def test_offload_leaves_only_weights_or_nothing():
    weights = (8 * LAYER + POSITIONS + NORM) * 2
    assert zero(2, "engine.zero.offload_optimizer={device: cpu}") == weights
    assert zero(3, "engine.zero.offload_optimizer={device: cpu}", "engine.zero.offload_param={device: cpu}") == 0


@given(
    st.integers(1, 6), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from(["fp32", "fp16", "bf16"])
)
def test_all_ranks_together_never_need_more_than_the_states_of_the_whole_model(layers, tensor, pipeline, dtype):
    recipe = make_recipe(
        RECIPE,
        [
            f"model.num_layers={layers * pipeline}",
            f"parallel={{tensor_model_parallel_size: {tensor}, pipeline_model_parallel_size: {pipeline}}}",
            f"precision.dtype={dtype}",
        ],
    )
    each = {"fp32": 16, "fp16": 20, "bf16": 18}[dtype]
    least = least_memory(recipe, lay_out(recipe, tensor * pipeline))
    assert 0 < least * tensor * pipeline <= parameter_count(recipe.model, 257) * each


def test_it_needs_no_torch():
    check = "import sys, pretrain.launch.placement; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
