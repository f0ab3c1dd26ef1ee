"""Memory of a choice from pieces with round numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pretrain.recipe import make_recipe
from pretrain.tools.plan.search.estimates import RESERVED, stage_load, stage_peak, state_bytes
from pretrain.tools.plan.search.trace_pieces import ModelPiece, Passing, Pieces
from tools.plan.search.test_choices import CHOICE, RECIPE

PIECES = Pieces(
    layer=ModelPiece(kept=1000, kept_by_attention=400),
    embedding=ModelPiece(kept=70),
    head=ModelPiece(),
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
    assert peak(0, replace(CHOICE, micro_batch=4)) == 4 * 4 * (2 * 1000 + 70 - 50) + 30 + 3 * 20


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
