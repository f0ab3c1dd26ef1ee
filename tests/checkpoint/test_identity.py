"""Checkpoints of other models are refused; those from before a setting existed are of its default."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import tiny
from engine.layouts import LLAMA, QWEN
from pretrain.checkpoint.identity import differences, identity, require_same, structure
from pretrain.errors import CheckpointError
from pretrain.recipe import make_recipe
from pretrain.recipe.sections.model import ModelSection
from recipe.smallest import SMALLEST

LATER = (
    *("add_qkv_bias", "use_rope_scaling", "rope_scaling_factor", "rope_low_freq_factor", "rope_high_freq_factor"),
    *("original_max_position_embeddings", "rope_scaling_type", "yarn_beta_fast", "yarn_beta_slow"),
    *("yarn_attention_factor", "yarn_correction_range_round_to_int"),
    *(name for name in ModelSection.model_fields if "moe_" in name and name in structure(make_recipe(SMALLEST).model)),
    *("num_experts", "first_k_dense_replace"),
)


def model(*overrides):
    return tiny.tiny(*overrides), tiny.VOCAB_SIZE


@pytest.fixture
def old():
    """What a checkpoint of a Llama says that was saved before these settings existed."""
    saved = identity(*model(*LLAMA))
    for name in LATER:
        del saved["model"][name]
    return saved


def test_an_older_checkpoint_fits_the_defaults_of_later_settings(old):
    require_same(*model(*LLAMA), Path("old"), old, weights_only=False)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("model.add_qkv_bias=true", "model.add_qkv_bias False (recipe: True)"),
        ("model.use_rope_scaling=true", "model.use_rope_scaling False (recipe: True)"),
    ],
)
def test_an_older_checkpoint_does_not_fit_other_values(old, override, named):
    with pytest.raises(CheckpointError) as caught:
        require_same(*model(*LLAMA, override), Path("old"), old, weights_only=True)
    assert str(caught.value).startswith(f"old is of another run: {named}.\n")


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("model.add_qkv_bias=false", "model.add_qkv_bias True (recipe: False)"),
        ("model.rope_scaling_factor=32", "model.rope_scaling_factor 8.0 (recipe: 32.0)"),
        ("model.rope_scaling_type=yarn", "model.rope_scaling_type llama3 (recipe: yarn)"),
        ("model.rope_low_freq_factor=2", "model.rope_low_freq_factor 1.0 (recipe: 2.0)"),
        ("model.rope_high_freq_factor=5", "model.rope_high_freq_factor 4.0 (recipe: 5.0)"),
        ("model.original_max_position_embeddings=64", "original_max_position_embeddings 128 (recipe: 64)"),
    ],
)
def test_weights_do_not_fit_another_bias_or_another_rope(override, named):
    with pytest.raises(CheckpointError) as caught:
        require_same(*model(*QWEN, override), Path("ours"), identity(*model(*QWEN)), weights_only=True)
    assert named in str(caught.value)


OF_THE_TRAINING = {
    *("seq_length", "hidden_dropout", "attention_dropout"),
    *("init_method", "init_method_std", "output_layer_init_method"),
    *("moe_router_bias_update_rate", "moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_z_loss_coeff"),
    *("moe_expert_capacity_factor", "moe_token_drop_policy"),
    *("apply_query_key_layer_scaling", "attention_softmax_in_fp32", "make_vocab_size_divisible_by"),
}


def test_every_setting_is_part_of_the_structure_but_those_of_the_training():
    found = structure(make_recipe(SMALLEST).model)
    assert set(ModelSection.model_fields) - set(found) == OF_THE_TRAINING
    assert set(found) <= set(ModelSection.model_fields)


@pytest.mark.parametrize("index", ["native", "megatron"])
def test_other_held_out_files_leave_the_order_of_training(index):
    files = [f"data.index={index}", "data.path=null", "data.train_data_path=a", "data.valid_data_path=b"]
    saved = identity(*model(*files))
    notices = differences(model(*files, "data.valid_data_path=c")[0], saved)
    assert notices == ["data.valid_data_path: [['c', 1.0]] from here on; it was [['b', 1.0]]"]


@pytest.mark.parametrize(
    ("overrides", "notice"),
    [
        (["data.split_by=tokens"], "data.split_by: tokens, the checkpoint's documents"),
        (
            ["data.train_data_path=a", "data.valid_data_path=b"],
            "data.split: files of their own, the checkpoint's 969,30,1",
        ),
    ],
)
def test_another_way_to_hold_text_out_is_told(overrides, notice):
    """Also to a checkpoint from before the key existed."""
    saved = identity(*model("data.index=native"))
    del saved["samples"]["data.split_by"]
    (found,) = differences(model("data.index=native", *overrides)[0], saved)
    assert found.startswith(notice)
    assert differences(model("data.index=native")[0], saved) == []
