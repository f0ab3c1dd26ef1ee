"""Stages that are planned, and the micro-batches that show their peak."""

from __future__ import annotations

import pytest

from pretrain.recipe import make_recipe
from pretrain.recipe.layout import Layout, layers_with_experts
from pretrain.tools.plan.trace.stage_tracing import (
    differing_stages,
    first_rank,
    layers_of,
    planned_micro_batches,
)
from tools.plan.made_plan import RECIPE


def layout(stages=1, *, tensor=1, data=1, virtual=None, layers=None) -> Layout:
    return Layout(
        world_size=stages * tensor * data,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=stages,
        data_parallel_size=data,
        virtual_pipeline_model_parallel_size=virtual,
        layers_of_chunks=tuple(layers or [2] * stages * (virtual or 1)),
        micro_batch_size=1,
    )


@pytest.mark.parametrize(("stages", "planned"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (8, [0, 1, 7])])
def test_first_second_and_last_stage_differ(stages, planned):
    assert differing_stages(layout(stages)) == planned


def test_a_later_stage_with_more_layers_is_planned_too():
    assert differing_stages(layout(5, layers=[2, 2, 3, 3, 2])) == [0, 1, 2, 4]


def test_a_later_stage_with_more_layers_of_experts_is_planned_too():
    experts = {"num_experts": 4, "moe_layer_freq": 4, "add_bias_linear": False}
    recipe = make_recipe({**RECIPE, "model": {**RECIPE["model"], **experts}, "parallel": {}})
    of_stages = layout(5, layers=[1, 1, 2, 2, 2])
    assert layers_with_experts(recipe, of_stages) == [1, 0, 0, 1, 0]
    assert differing_stages(of_stages, [1, 0, 0, 1, 0]) == [0, 1, 2, 3, 4]
    assert differing_stages(layout(5), [1, 0, 0, 1, 0]) == [0, 1, 3, 4]


def test_ranks_of_a_stage_follow_those_of_the_stage_before():
    assert [first_rank(layout(4, tensor=8, data=2), stage) for stage in range(4)] == [0, 16, 32, 48]


def test_layers_of_chunks_are_joined():
    assert layers_of(layout(2, virtual=2, layers=[1, 2, 3, 4]), 0) == "1+3"


def test_one_stage_takes_two_micro_batches():
    """The second meets the gradients of the first."""
    assert planned_micro_batches(layout(1), 0, 100) == (1, 2)


@pytest.mark.parametrize(("stage", "needed"), [(0, 9), (1, 8), (7, 2)])
def test_1f1b_takes_one_more_than_are_in_flight(stage, needed):
    assert planned_micro_batches(layout(8), stage, 1536) == (1, needed)


def test_a_step_of_fewer_micro_batches_is_taken_whole():
    assert planned_micro_batches(layout(8), 0, 3) == (1, 3)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_the_interleaved_schedule_reaches_its_steady_state(stages, chunks):
    """Its first passes are fewer than all passes; micro-batches come in multiples of the stages."""
    fewest, needed = planned_micro_batches(layout(stages, virtual=chunks), 0, 64 * stages)
    assert fewest == stages
    assert needed % stages == 0
    assert 2 * (stages - 1) + (chunks - 1) * stages < needed * chunks
