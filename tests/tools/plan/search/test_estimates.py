"""Memory of a choice from pieces with round numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from pretrain.recipe import lay_out, make_recipe
from pretrain.tools.plan.search.estimates import (
    RESERVED,
    layout_peak,
    stage_costs,
    stage_load,
    stage_peak,
    state_bytes,
)
from pretrain.tools.plan.search.trace_pieces import ModelPiece, Passing, Pieces, PiecesKey, trace_pieces
from pretrain.tools.plan.stage_plan import Operation
from tools.plan.made_plan import plan
from tools.plan.search.test_choices import CHOICE, EXPERTS, RECIPE

PIECES = Pieces(
    layer=ModelPiece(kept=1000, kept_by_attention=400),
    embedding=ModelPiece(kept=70),
    head=ModelPiece(),
    expert_ranks=1,
    tied=0,
    passing_in_layer=Passing(30, 20),
    passing_in_head=Passing(5000, 500),
    entering=50,
)

SPARSE, DENSE = Operation(7.0, 0), Operation(5.0, 0)
MIXED = replace(
    PIECES,
    layer=replace(PIECES.layer, parameters=90, experts=80, forward=Counter([SPARSE])),
    dense=replace(
        PIECES, layer=ModelPiece(kept=300, parameters=10, forward=Counter([DENSE])), passing_in_layer=Passing(10, 5)
    ),
)
ONE_OF_EXPERTS = (*EXPERTS, "model.first_k_dense_replace=1", "model.moe_layer_freq=5")
"""Layer 5 of 8, of stage 2 of 4, alone has experts."""

BF16_STATE = ("optimizer.adam_beta2=0.95", "optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16")


def peak(stage, choice=CHOICE, micro_batches=16, pieces=PIECES, with_experts=0):
    """Return the bytes of a stage without parameters, and without half of `RESERVED`, which comes on top of them."""
    recipe = make_recipe(RECIPE)
    load = stage_load(choice.layout(recipe), pieces, stage, micro_batches, with_experts)
    load = replace(load, parameters=0, experts=0)
    return round(stage_peak(recipe, choice, pieces, load, 0) / (1 + RESERVED / 2))


def test_the_first_stage_keeps_as_many_micro_batches_as_there_are_stages():
    """Of each two layers and the embedding, without the output, which is sent on."""
    assert peak(0) == 4 * (2 * 1000 + 70 - 50) + 30


def test_process_groups_and_the_allocator_s_reserve_come_on_top():
    recipe = make_recipe(RECIPE)
    load = stage_load(CHOICE.layout(recipe), PIECES, 1, 16, 0)
    assert stage_peak(recipe, CHOICE, PIECES, load, 77) == pytest.approx((3 * 2 * 1000 + 30) * 1.25 + 77, abs=1)


def test_later_stages_keep_fewer_and_the_last_has_the_loss():
    assert peak(1) == 3 * 2 * 1000 + 30
    assert peak(3) == 2 * 1000 + 50 + 5000


def test_no_more_are_in_flight_than_a_step_has():
    assert peak(0, micro_batches=2) == 2 * (2 * 1000 + 70 - 50) + 30


def test_chunks_keep_more():
    """2 (p - 1) + (v - 1) p + 1 passes of a layer each, half of them of the first chunk."""
    assert peak(0, replace(CHOICE, chunks=2)) == 11 * (1000 - 50) + 6 * 70 + 5 * 50 + 30


def test_recompute_keeps_inputs_and_has_one_layer_again():
    assert peak(0, replace(CHOICE, recompute="full")) == 4 * (2 * 50 + 70 - 50) + 1000 + 30
    assert peak(0, replace(CHOICE, recompute="selective")) == 4 * (2 * 600 + 70 - 50) + 400 + 30


def test_samples_multiply_what_is_kept_and_add_to_what_passes():
    assert peak(0, replace(CHOICE, micro_batch=3)) == 3 * 4 * (2 * 1000 + 70 - 50) + 30 + 2 * 20


def test_layers_without_experts_keep_less():
    full = replace(CHOICE, recompute="full")
    assert peak(1, pieces=MIXED, with_experts=1) == 3 * (1000 + 300) + 30
    assert peak(1, pieces=MIXED) == 3 * 2 * 300 + 10
    assert peak(1, full, pieces=MIXED, with_experts=1) == 3 * 2 * 50 + 1000 + 30
    assert peak(1, full, pieces=MIXED) == 3 * 2 * 50 + 300 + 10


def test_layers_without_experts_have_parameters_and_work_of_their_own():
    recipe = make_recipe(RECIPE, ONE_OF_EXPERTS)
    load = stage_load(CHOICE.layout(recipe), MIXED, 2, 16, 1)
    assert (load.parameters, load.experts) == (90 + 10, 80)
    assert stage_costs(recipe, CHOICE, MIXED, load).forward == {SPARSE: 1, DENSE: 1}
    again = stage_costs(recipe, replace(CHOICE, recompute="full"), MIXED, load)
    assert again.backward == {SPARSE: 1, DENSE: 1}


def test_the_stage_with_most_experts_is_looked_at_wherever_it_is():
    recipe, device = make_recipe(RECIPE, ONE_OF_EXPERTS), plan().device
    large = replace(MIXED, layer=replace(MIXED.layer, parameters=10**9, experts=10**9))
    assert layout_peak(recipe, device, CHOICE, large) > 16 * 10**9


@pytest.mark.parametrize(
    ("settings", "zero", "data", "bytes_of_one"),
    [
        (("precision.dtype=bf16", "precision.grad_reduce_in_fp32=false"), 0, 1, 2 + 2 + 12),
        (("precision.dtype=bf16",), 0, 1, 2 + 4 + 12),
        (("precision.dtype=bf16",), 1, 4, 2 + 4 + 12 / 4),
        ((), 0, 1, 4 + 4 + 8),
        ((*BF16_STATE, "precision.dtype=bf16"), 1, 4, 2 + 4 + (4 + 2 + 2) / 4),
        ((*BF16_STATE[:2],), 0, 1, 4 + 4 + 2 + 4),
    ],
)
def test_state_of_a_parameter(settings, zero, data, bytes_of_one):
    """The table of megatron-core's distributed optimizer: 18, or 6 + 12/d; without fp32 gradients 16, and fp32 16."""
    recipe = make_recipe(RECIPE, settings)
    state, _ = state_bytes(recipe, replace(CHOICE, zero=zero, data=data), 1000)
    assert state == bytes_of_one * 1000


def test_muon_has_two_states_of_embeddings_and_head_and_one_of_the_layers():
    recipe = make_recipe(RECIPE, ["optimizer.name=muon"])
    load = stage_load(CHOICE.layout(recipe), PIECES, 0, 16, 0)
    assert load.outside == PIECES.embedding.parameters + PIECES.head.parameters
    state, _ = state_bytes(recipe, CHOICE, load.parameters, outside=load.outside)
    assert state == (4 + 4 + 4) * load.parameters + 4 * load.outside


@pytest.fixture
def traced(monkeypatch):
    """Subjects of traces, none of which is made."""
    subjects = []

    def trace(function, given):
        subjects.extend(given)
        raise EOFError

    monkeypatch.setattr("pretrain.tools.plan.search.trace_pieces.in_processes", trace)
    return subjects


def test_both_kinds_of_layers_are_traced(traced):
    """Of the layers without experts one trace serves every way of sharing them."""
    keys = [PiecesKey(1, False), PiecesKey(1, False, expert=2)]
    with pytest.raises(EOFError):
        trace_pieces(make_recipe(RECIPE, ONE_OF_EXPERTS), plan().device, 257, keys)
    kinds = [set(subject.recipe.model.layers_with_experts) for subject in traced]
    assert (kinds.count({True}), kinds.count({False})) == (3 * 2, 3)


def test_accumulation_steps_of_a_deepspeed_file_do_not_bind_the_small_models(tmp_path, monkeypatch, traced):
    (tmp_path / "ds.json").write_text('{"gradient_accumulation_steps": 4, "zero_optimization": {"stage": 1}}')
    monkeypatch.chdir(tmp_path)
    train = {"micro_batch_size": 1, "global_batch_size": 4, "train_iters": 10}
    engine = {"name": "deepspeed", "deepspeed_config": "ds.json"}
    recipe = make_recipe({**RECIPE, "train": train, "engine": engine, "parallel": {}})
    assert lay_out(recipe, 1).num_microbatches(4) == 4
    with pytest.raises(EOFError):
        trace_pieces(recipe, plan().device, 257, [PiecesKey(2, False)])
    assert [subject.layout.world_size for subject in traced] == [2] * 3
