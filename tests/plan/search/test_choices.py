"""Legal layouts, and the arguments that make them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from plan.made_plan import RECIPE
from pretrain.plan.search.choices import Choice, Choices
from pretrain.plan.search.set_arguments import set_arguments
from pretrain.recipe import make_recipe
from pretrain.recipe.layout import lay_out

CHOICE = Choice(tensor=1, pipeline=4, chunks=1, data=1, micro_batch=1, recompute="none", with_sequence=False, zero=0)
DEEPSPEED = ("engine.name=deepspeed", "parallel=null")


def test_all_layouts_are_tried():
    """1, 2 or 4 heads by rank; 1 to 8 stages of 8 layers."""
    sizes = {(each.tensor, each.pipeline, each.data) for each in Choices(make_recipe(RECIPE), 8, 8)}
    assert sizes == {(t, p, 8 // t // p) for t in (1, 2, 4) for p in (1, 2, 4, 8) if 8 % (t * p) == 0}


def test_sizes_that_are_not_legal_are_counted_by_reason():
    choices = Choices(make_recipe(RECIPE), 16, 8)
    list(choices)
    assert choices.refused["model.num_attention_heads is not a multiple of the tensor-parallel size"] == 1
    assert choices.refused["more than 8 ranks, which are not in one node, would share a layer"] == 1
    assert choices.refused["model.num_layers 8 is not a multiple of the stages"] == 1


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


def test_layers_that_were_given_by_stage_go_with_the_stages():
    recipe = make_recipe(RECIPE, ["parallel.pipeline_layers=[1,3,3,1]"])
    assert set_arguments(recipe, CHOICE) == ()
    assert "parallel.pipeline_layers=null" in set_arguments(recipe, replace(CHOICE, pipeline=2))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([2, 4, 8]), st.data())
def test_every_choice_is_a_recipe_that_loads_with_its_layout(devices, data):
    recipe = make_recipe(RECIPE)
    choice = data.draw(st.sampled_from(list(Choices(recipe, devices, 8))))
    loaded = make_recipe(RECIPE, set_arguments(recipe, choice))
    assert lay_out(loaded, devices) == choice.layout(recipe)
    assert loaded.recompute.granularity == choice.recompute
