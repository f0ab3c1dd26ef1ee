"""Memory of a choice from pieces with round numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pretrain.recipe import lay_out, make_recipe
from pretrain.tools.plan.search.estimates import RESERVED, stage_load, stage_peak, state_bytes
from pretrain.tools.plan.search.trace_pieces import ModelPiece, Passing, Pieces, PiecesKey, trace_pieces
from tools.plan.made_plan import plan
from tools.plan.search.test_choices import CHOICE, RECIPE

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


def peak(stage, choice=CHOICE, micro_batches=16):
    """Return the bytes of a stage without parameters, and without half of `RESERVED`, which comes on top of them."""
    recipe = make_recipe(RECIPE)
    load = stage_load(choice.layout(recipe), PIECES, stage, micro_batches)
    return round(stage_peak(recipe, choice, PIECES, load, 0) / (1 + RESERVED / 2))


def test_the_first_stage_keeps_as_many_micro_batches_as_there_are_stages():
    """Of each two layers and the embedding, without the output, which is sent on."""
    assert peak(0) == 4 * (2 * 1000 + 70 - 50) + 30


def test_process_groups_and_the_allocator_s_reserve_come_on_top():
    recipe = make_recipe(RECIPE)
    load = stage_load(CHOICE.layout(recipe), PIECES, 1, 16)
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


@pytest.mark.parametrize(
    ("settings", "zero", "data", "bytes_of_one"),
    [
        (("precision.dtype=bf16", "precision.grad_reduce_in_fp32=false"), 0, 1, 2 + 2 + 12),
        (("precision.dtype=bf16",), 0, 1, 2 + 4 + 12),
        (("precision.dtype=bf16",), 1, 4, 2 + 4 + 12 / 4),
        ((), 0, 1, 4 + 4 + 8),
    ],
)
def test_state_of_a_parameter(settings, zero, data, bytes_of_one):
    """The table of megatron-core's distributed optimizer: 18, or 6 + 12/d; without fp32 gradients 16, and fp32 16."""
    recipe = make_recipe(RECIPE, settings)
    state, _ = state_bytes(recipe, replace(CHOICE, zero=zero, data=data), 1000)
    assert state == bytes_of_one * 1000


def test_accumulation_steps_of_a_deepspeed_file_do_not_bind_the_small_models(tmp_path, monkeypatch):
    (tmp_path / "ds.json").write_text('{"gradient_accumulation_steps": 4, "zero_optimization": {"stage": 1}}')
    monkeypatch.chdir(tmp_path)
    train = {"micro_batch_size": 1, "global_batch_size": 4, "train_iters": 10}
    engine = {"name": "deepspeed", "deepspeed_config": "ds.json"}
    recipe = make_recipe({**RECIPE, "train": train, "engine": engine, "parallel": {}})
    assert lay_out(recipe, 1).num_microbatches(4) == 4
    traced = []

    def trace(function, subjects):
        traced.extend(subjects)
        raise EOFError

    monkeypatch.setattr("pretrain.tools.plan.search.trace_pieces.in_processes", trace)
    with pytest.raises(EOFError):
        trace_pieces(recipe, plan().device, 257, [PiecesKey(2, False)])
    assert [subject.layout.world_size for subject in traced] == [2] * 3
