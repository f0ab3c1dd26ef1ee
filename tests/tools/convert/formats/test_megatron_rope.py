"""Arguments of Megatron-LM that scale rope are the keys of the same model, and the keys those arguments."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from megatron.core.models.common.embeddings import YarnRotaryEmbedding
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

from pretrain.errors import CheckpointError
from pretrain.model.gpt import Rotations
from pretrain.recipe.sections.model import ModelSection
from pretrain.tools.convert.formats import megatron_writer
from pretrain.tools.convert.formats.megatron_settings import settings_of
from pretrain.tools.convert.model_weights import FileLayout, model_section
from tools.convert.formats.own_models import SMALL, random_weights

ROPE = {"position_embedding_type": "rope", "kv_channels": 64}
YARN = {"use_rope_scaling": True, "rope_scaling_type": "yarn", "original_max_position_embeddings": 32}
MODELS = {
    "none": {},
    "llama3": {"use_rope_scaling": True, "rope_scaling_factor": 32.0},
    "linear": {"use_rope_scaling": True, "rope_scaling_type": "linear", "rope_scaling_factor": 4.0},
    "yarn": YARN,
    "yarn of DeepSeek": YARN | {"yarn_attention_factor": 1.0, "rope_scaling_factor": 40.0},
    "yarn, other factors": YARN
    | {
        "rope_scaling_factor": 2.5,
        "yarn_beta_fast": 8.0,
        "yarn_beta_slow": 0.5,
        "yarn_attention_factor": 1.25,
        "yarn_correction_range_round_to_int": False,
    },
}
EACH = pytest.mark.parametrize("given", MODELS.values(), ids=MODELS)


def told(args):
    """Return the model that arguments and a small shape describe."""
    return model_section(Path("made"), settings_of(Path("made"), args, {}), SMALL)


def written(given):
    return vars(megatron_writer.args_for(random_weights(**ROPE, **given), FileLayout()))


@EACH
def test_what_is_written_is_read_again(given):
    model, again = ModelSection.model_validate(SMALL | ROPE | given), told(written(given))
    rope = [name for name in ModelSection.model_fields if "rope" in name or "rotary" in name or "yarn" in name]
    rope += ["original_max_position_embeddings", "position_embedding_type"]
    assert {name: getattr(again, name) for name in rope} == {name: getattr(model, name) for name in rope}


@EACH
def test_megatron_core_has_the_same_cos_and_sin_with_what_is_written(given, monkeypatch):
    model, args = ModelSection.model_validate(SMALL | ROPE | given), written(given)
    common = {"kv_channels": 64, "rotary_base": args["rotary_base"], "use_cpu_initialization": True}
    if args["position_embedding_type"] == "yarn":
        monkeypatch.setattr("torch.cuda.current_device", lambda: "cpu")  # to which it moves its tensors
        theirs = YarnRotaryEmbedding(
            **common,
            scaling_factor=args["rotary_scaling_factor"],
            original_max_position_embeddings=args["yarn_original_max_position_embeddings"],
            beta_fast=args["yarn_beta_fast"],
            beta_slow=args["yarn_beta_slow"],
            mscale=args["mscale"],
            mscale_all_dim=args["mscale_all_dim"],
            correction_range_round_to_int=args["yarn_correction_range_round_to_int"],
        ).get_cached_cos_sin(32, dtype=torch.float32)
    else:
        scaling = {name.removeprefix("use_"): args[name] for name in ("use_rope_scaling", "rope_scaling_factor")}
        divisor = args["rotary_seq_len_interpolation_factor"]
        rope = RotaryEmbedding(**common, rotary_percent=1.0, seq_len_interpolation_factor=divisor, **scaling)
        theirs = rope.get_emb(32).cos(), rope.get_emb(32).sin()
    # up to 31 radians, whose frequency both round in fp32: 31 x 6e-8, and theirs is computed in it
    torch.testing.assert_close(Rotations(model)(32), torch.stack(theirs), rtol=0, atol=1e-5)


def test_yarn_has_megatron_lms_defaults_and_turns_whole_heads():
    model = told({"position_embedding_type": "yarn", "rotary_percent": 0.5, "use_rope_scaling": True})
    assert (model.rope_scaling_type, model.rope_scaling_factor, model.rotary_percent) == ("yarn", 1.0, 1.0)
    assert (model.original_max_position_embeddings, model.yarn_attention_factor) == (4096, None)


def test_positions_that_are_not_rotated_are_not_scaled():
    learned = {"position_embedding_type": "learned_absolute", "rotary_seq_len_interpolation_factor": 4}
    assert not told(learned).use_rope_scaling


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"use_rope_scaling": True, "rotary_seq_len_interpolation_factor": 4}, "which scale rope twice"),
        ({"position_embedding_type": "yarn", "mscale": "1"}, "mscale 1"),
    ],
)
def test_what_no_recipe_says_is_refused(args, named):
    with pytest.raises(CheckpointError, match=named):
        told({"position_embedding_type": "rope"} | args)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"rope_scaling_type": "dynamic"}, "rope_scaling_type dynamic"),
        ({"rope_scaling_type": "linear", "rope_scaling_factor": 2.5}, "linear with rope_scaling_factor 2.5"),
        ({"rope_scaling_type": "yarn", "rotary_percent": 0.5}, "yarn with rotary_percent 0.5"),
        (
            {"rope_scaling_type": "yarn", "rope_scaling_factor": 1.0, "yarn_attention_factor": 1.5},
            "yarn with rope_scaling_factor 1 and yarn_attention_factor",
        ),
    ],
)
def test_what_megatron_lm_does_not_have_is_refused(given, named):
    with pytest.raises(CheckpointError, match=named):
        megatron_writer.write(random_weights(**ROPE, use_rope_scaling=True, **given), FileLayout())
