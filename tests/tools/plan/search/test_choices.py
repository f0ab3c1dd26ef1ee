"""Legal layouts, and the arguments that make them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import RecipeError
from pretrain.recipe import make_recipe
from pretrain.recipe.layout import lay_out
from pretrain.tools.plan.search.choices import RECOMPUTE, Choices, LayoutChoice, set_arguments
from tools.plan.made_plan import RECIPE

CHOICE = LayoutChoice(
    tensor=1, pipeline=4, chunks=1, data=1, micro_batch=1, recompute="none", with_sequence=False, zero=0
)
EXPERTS = ("model.num_experts=6", "model.add_bias_linear=false", "model.moe_ffn_hidden_size=64")
DEEPSPEED = ("engine.name=deepspeed", "parallel=null")


def test_all_layouts_are_tried():
    """1, 2 or 4 heads by rank; 1 to 8 stages of 8 layers."""
    sizes = {(each.tensor, each.pipeline, each.data) for each in Choices(make_recipe(RECIPE), 8, 8)}
    assert sizes == {(t, p, 8 // t // p) for t in (1, 2, 4) for p in (1, 2, 4, 8) if 8 % (t * p) == 0}


def test_sizes_that_are_not_legal_are_counted_by_reason():
    choices = Choices(make_recipe(RECIPE), 16, 8)
    list(choices)
    assert choices.refused["model.num_attention_heads is not a multiple of the tensor-parallel size"] == 1
    assert choices.refused["a tensor-parallel group would span nodes of 8 devices"] == 1
    assert choices.refused["more stages than model.num_layers 8"] == 1


def test_deepspeed_has_stages_of_zero_in_place_of_those_of_a_pipeline():
    found = list(Choices(make_recipe(RECIPE, DEEPSPEED), 4, 8))
    assert {each.pipeline for each in found} == {1}
    assert {each.zero for each in found} == {0, 1, 2, 3}


def test_weights_on_the_host_leave_zero_3():
    host = ("engine.zero.stage=3", "engine.zero.offload_param.device=cpu")
    assert {each.zero for each in Choices(make_recipe(RECIPE, (*DEEPSPEED, *host)), 4, 8)} == {3}


def test_only_what_differs_is_an_argument():
    recipe = make_recipe(RECIPE)
    assert set_arguments(recipe, CHOICE) == ()
    assert set_arguments(recipe, replace(CHOICE, micro_batch=2, recompute="full", chunks=2)) == (
        "parallel.virtual_pipeline_model_parallel_size=2",
        "train.micro_batch_size=2",
        "recompute.granularity=full",
    )


def test_experts_are_whole_or_divided_like_the_layers():
    recipe = make_recipe(RECIPE, ("parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true", *EXPERTS))
    of_two = replace(CHOICE, tensor=2, with_sequence=True, expert_tensor=2)
    assert set_arguments(recipe, of_two) == ()
    assert set_arguments(recipe, replace(of_two, expert=3, expert_tensor=1)) == (
        "parallel.expert_model_parallel_size=3",
        "parallel.expert_tensor_parallel_size=1",
    )
    assert "parallel.expert_tensor_parallel_size=1" not in set_arguments(recipe, replace(CHOICE, expert=3))


def test_layers_that_were_given_by_stage_go_with_the_stages():
    recipe = make_recipe(RECIPE, ["parallel.pipeline_layers=[1,3,3,1]"])
    assert set_arguments(recipe, CHOICE) == ()
    assert "parallel.pipeline_layers=null" in set_arguments(recipe, replace(CHOICE, pipeline=2))


def legal(recipe, overrides, devices, choice):
    """Return whether the command line takes a choice: the judge is the recipe's own reader."""
    try:
        made = make_recipe(RECIPE, (*overrides, *set_arguments(recipe, choice)))
        return lay_out(made, devices) == choice.layout(recipe)
    except RecipeError:
        return False


PLAIN = [("none", False, 0)]
"""Recomputation, sequence parallelism and stage of ZeRO."""
SEQUENCE = [("none", True, 0)]
SAVINGS = list(product(RECOMPUTE, (False, True), range(4)))


def all_choices(recipe, devices, savings):
    """Yield every choice of the sizes that multiply to the devices, legal or not, with layers shared evenly."""
    numbers = range(1, devices + 1)
    has_experts = recipe.model.num_experts is not None

    def experts(tensor):
        return product(numbers, {1, tensor}) if has_experts else [(1, 1)]

    batch = recipe.train.global_batch_size
    for tensor, pipeline, data in (each for each in product(numbers, repeat=3) if math.prod(each) == devices):
        micro_batches = [number for number in range(1, batch + 1) if batch % (number * data) == 0]
        chunks = range(1, 7) if pipeline > 1 else [1]
        for micro_batch, chunk, (recompute, with_sequence, zero) in product(micro_batches, chunks, savings):
            if tensor > 1 or not with_sequence:
                for expert, expert_tensor in experts(tensor):
                    yield LayoutChoice(
                        tensor=tensor,
                        pipeline=pipeline,
                        chunks=chunk,
                        data=data,
                        micro_batch=micro_batch,
                        recompute=recompute,
                        with_sequence=with_sequence,
                        zero=zero,
                        expert=expert,
                        expert_tensor=expert_tensor,
                    )


@pytest.mark.parametrize(
    ("devices", "overrides", "savings"),
    [
        (4, ("model.num_layers=6", "train.global_batch_size=12"), PLAIN),
        (2, ("model.num_layers=6", "train.global_batch_size=18", "train.micro_batch_size=3"), PLAIN),
        (2, (*EXPERTS, "model.num_layers=2", "train.global_batch_size=4"), PLAIN + SEQUENCE),
        (2, (*DEEPSPEED, "engine.zero.stage=1", "precision.dtype=bf16", "train.global_batch_size=2"), SAVINGS),
    ],
    ids=["batch 12", "micro-batch 3", "experts", "ZeRO in bf16"],
)
def test_exactly_the_legal_layouts_are_tried(devices, overrides, savings):
    """Against every combination of sizes, read as a recipe is; none is left out, none is illegal."""
    one_stage = ("parallel.pipeline_model_parallel_size=1", *overrides)
    recipe = make_recipe(RECIPE, one_stage)
    found = [
        each
        for each in Choices(recipe, devices, 8)
        if each.layers is None and (each.recompute, each.with_sequence, each.zero) in savings
    ]
    wanted = {each for each in all_choices(recipe, devices, savings) if legal(recipe, one_stage, devices, each)}
    assert len(found) == len(set(found))
    assert set(found) == wanted


@pytest.mark.parametrize(("layers", "stages", "ends"), [(70, 12, (5, 6, 6)), (44, 8, (5, 5, 6))])
def test_layers_that_stages_cannot_share_evenly_are_fewer_at_the_ends(layers, stages, ends):
    """BLOOM's 70 layers on 12 stages, as it was trained; NeoX's 44 on 8."""
    one_stage = ("parallel.pipeline_model_parallel_size=1", "train.global_batch_size=24")
    given = (f"model.num_layers={layers}", *one_stage)
    recipe = make_recipe(RECIPE, given)
    found = [each for each in Choices(recipe, stages, 1) if each.pipeline == stages]
    assert {each.chunks for each in found} > {1}
    for each in found:
        loaded = make_recipe(RECIPE, (*given, *set_arguments(recipe, each)))
        assert sum(loaded.layers_of_chunks) == layers
        assert max(loaded.layers_of_chunks) - min(loaded.layers_of_chunks) == 1
    plain = next(each for each in found if each.chunks == 1)
    assert plain.layers[:3] == plain.layers[:-4:-1] == ends


def test_no_micro_batch_beyond_the_largest_is_tried_but_the_recipe_s_own():
    recipe = make_recipe(RECIPE, ("train.global_batch_size=1024", "train.micro_batch_size=256"))
    assert {each.micro_batch for each in Choices(recipe, 4, 8) if each.data == 1} == {1, 2, 4, 8, 16, 32, 64, 256}


choices_of = cache(lambda devices: list(Choices(make_recipe(RECIPE), devices, 8)))


@given(st.sampled_from([2, 4, 8]), st.data())
def test_every_choice_is_a_recipe_that_loads_with_its_layout(devices, data):
    recipe = make_recipe(RECIPE)
    choice = data.draw(st.sampled_from(choices_of(devices)))
    loaded = make_recipe(RECIPE, set_arguments(recipe, choice))
    assert lay_out(loaded, devices) == choice.layout(recipe)
    assert loaded.recompute.granularity == choice.recompute
