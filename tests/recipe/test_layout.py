"""A recipe on a number of ranks."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import RecipeError
from pretrain.recipe import Layout, lay_out, make_recipe
from recipe.smallest import SMALLEST

TENSOR_4 = "parallel.tensor_model_parallel_size=4"


def test_ranks_that_are_left_are_data_parallel(make):
    recipe = make("parallel={tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2}")
    assert recipe.model_parallel_size == 4
    assert lay_out(recipe, 8) == Layout(
        world_size=8,
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        data_parallel_size=2,
        virtual_pipeline_model_parallel_size=None,
        layers_of_chunks=(1, 1),
        micro_batch_size=2,
    )


def test_a_step_accumulates_what_one_pass_cannot_hold(make):
    assert lay_out(make(), 1).num_microbatches(8) == 4
    assert lay_out(make(), 2).num_microbatches(8) == 2


EXPERTS = ("model.num_experts=4", "model.add_bias_linear=false")


def test_ranks_that_do_not_share_experts_hold_equal_ones(make):
    whole = "parallel={tensor_model_parallel_size: 2, sequence_parallel: true, expert_tensor_parallel_size: 1}"
    assert lay_out(make(*EXPERTS, "parallel.expert_model_parallel_size=2"), 4).expert_data_parallel_size == 2
    assert lay_out(make(*EXPERTS, whole), 4).expert_data_parallel_size == 4


def test_ranks_that_cannot_hold_the_experts_are_refused(make):
    with pytest.raises(RecipeError) as caught:
        lay_out(make(*EXPERTS, "parallel.expert_model_parallel_size=4"), 2)
    assert str(caught.value).splitlines() == [
        (
            "recipe: 2 ranks cannot hold expert_model_parallel_size 4 x expert_tensor_parallel_size 1 x "
            "pipeline_model_parallel_size 1 = 4."
        ),
        "Start a multiple of 4 ranks, or change these keys of section parallel.",
    ]


def test_ranks_that_do_not_fit_are_refused(make):
    with pytest.raises(RecipeError) as caught:
        lay_out(make(TENSOR_4), 6)
    assert str(caught.value).splitlines() == [
        "recipe: 6 ranks cannot hold tensor_model_parallel_size 4 x pipeline_model_parallel_size 1 = 4.",
        "Start a multiple of 4 ranks, or change these keys of section parallel.",
    ]


def test_ranks_that_share_sequences_read_the_same_samples(make):
    layout = lay_out(make("parallel.context_parallel_size=2"), 4)
    assert (layout.data_parallel_size, layout.replicas) == (2, 4)
    assert layout.sizes == "tensor 1 x pipeline 1 x context 2 x data 2"


def test_ranks_that_cannot_share_sequences_are_refused(make):
    with pytest.raises(RecipeError, match=r"3 ranks cannot hold .* x context_parallel_size 2 = 2"):
        lay_out(make("parallel.context_parallel_size=2"), 3)


@pytest.mark.parametrize("world_size", [0, 2])
def test_too_few_ranks_are_refused(make, world_size):
    with pytest.raises(RecipeError, match=f"{world_size} ranks cannot hold"):
        lay_out(make(TENSOR_4), world_size)


def test_a_batch_that_cannot_be_divided_is_refused(make):
    with pytest.raises(RecipeError) as caught:
        lay_out(make(), 3)
    assert str(caught.value).splitlines() == [
        "recipe: train.global_batch_size 8 is not a multiple of train.micro_batch_size 2 x data-parallel size 3 = 6.",
        "The data-parallel size is 3 ranks / 1 (tensor x pipeline). Change one of the two sizes.",
    ]


def test_every_batch_of_a_rampup_must_be_divisible(make):
    recipe = make("train.rampup_batch_size=2 2 100", "train.train_samples=1000")
    assert lay_out(recipe, 1).data_parallel_size == 1
    with pytest.raises(RecipeError, match=r"a batch of 2 \(train.rampup_batch_size\) is not a multiple of .* = 4\.\n"):
        lay_out(recipe, 2)


def test_the_interleaved_schedule_needs_whole_rounds(make):
    more = "parallel={pipeline_model_parallel_size: 4, virtual_pipeline_model_parallel_size: 2}"
    recipe = make("model.num_layers=8", more)
    assert lay_out(recipe, 4).num_microbatches(8) == 4
    with pytest.raises(RecipeError, match=r"gives 2 micro batches, not a multiple of .* 4"):
        lay_out(recipe, 8)


@given(
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2]),
    world_size=st.integers(1, 64),
    batch=st.integers(1, 32),
)
def test_a_layout_accounts_for_every_rank_and_every_sample(tensor, pipeline, world_size, batch):
    data = copy.deepcopy(SMALLEST)
    data["parallel"] = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}
    data["train"]["global_batch_size"] = 2 * batch
    try:
        layout = lay_out(make_recipe(data), world_size)
    except RecipeError:
        assert world_size % (tensor * pipeline) or 2 * batch % (2 * (world_size // (tensor * pipeline)))
    else:
        assert layout.data_parallel_size * tensor * pipeline == world_size
        assert layout.num_microbatches(2 * batch) * 2 * layout.data_parallel_size == 2 * batch


@pytest.mark.parametrize(
    ("layers", "parallel", "chunks", "shown"),
    [
        (22, "pipeline_layers: [5, 6, 6, 5]", (5, 6, 6, 5), "5, 6, 6, 5"),
        (22, "num_layers_in_first_pipeline_stage: 4", (4, 6, 6, 6), "4, 6, 6, 6"),
        (22, "num_layers_in_last_pipeline_stage: 4", (6, 6, 6, 4), "6, 6, 6, 4"),
        (
            22,
            "num_layers_in_first_pipeline_stage: 4, num_layers_in_last_pipeline_stage: 6",
            (4, 6, 6, 6),
            "4, 6, 6, 6",
        ),
        (24, "", (6, 6, 6, 6), "6"),
        (24, "virtual_pipeline_model_parallel_size: 2", (3,) * 8, "3+3"),
        (
            22,
            "virtual_pipeline_model_parallel_size: 2, num_layers_in_first_pipeline_stage: 4",
            (2, 3, 3, 3, 2, 3, 3, 3),
            "2+2, 3+3, 3+3, 3+3",
        ),
        (
            22,
            "virtual_pipeline_model_parallel_size: 2, pipeline_layers: [2, 3, 3, 3, 3, 3, 3, 2]",
            (2, 3, 3, 3, 3, 3, 3, 2),
            "2+3, 3+3, 3+3, 3+2",
        ),
    ],
)
def test_layers_of_stages(make, layers, parallel, chunks, shown):
    recipe = make(f"model.num_layers={layers}", f"parallel={{pipeline_model_parallel_size: 4, {parallel}}}")
    layout = lay_out(recipe, 4)
    assert layout.layers_of_chunks == recipe.layers_of_chunks == chunks
    assert layout.stages == shown
