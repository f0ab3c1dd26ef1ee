"""Flags of Megatron-LM and MindSpeed-LLM that scale rope are the keys of the same model, or have to be accepted."""

from __future__ import annotations

import pytest

from pretrain.errors import MigrateError
from pretrain.recipe.sections.model import ModelSection
from tools.migrate.megatron.small_training import line_of, migrated

STEPS = "--train-iters 10 "
ROPE = f"{STEPS} --position-embedding-type rope "
YARN = f"{STEPS} --position-embedding-type yarn "
TYPE = f"{ROPE} --rope-scaling-type yarn --rope-scaling-original-max-position-embeddings 8 "
NAMES = [name for name in ModelSection.model_fields if "rope" in name or "yarn" in name]


def rope_of(arguments, **wishes):
    """Return the keys of rope's scaling that are not at their defaults."""
    model = migrated(arguments, **wishes).recipe.model
    found = {name: getattr(model, name) for name in [*NAMES, "rotary_percent", "original_max_position_embeddings"]}
    return {name: value for name, value in found.items() if value != ModelSection.model_fields[name].default}


def scaled(kind, factor, length=None, **more):
    of_kind = {} if kind == "llama3" else {"rope_scaling_type": kind}
    of_length = {} if length is None else {"original_max_position_embeddings": length}
    return {"use_rope_scaling": True, "rope_scaling_factor": factor} | of_kind | of_length | more


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (ROPE, {}),
        (ROPE + "--use-rope-scaling --rope-scaling-factor 32", scaled("llama3", 32.0)),
        (ROPE + "--rotary-seq-len-interpolation-factor 4", scaled("linear", 4.0)),
        (ROPE + "--rotary-seq-len-interpolation-factor 1", {}),
        (STEPS + "--rotary-seq-len-interpolation-factor 4", {}),  # of learned positions
        (YARN, scaled("yarn", 1.0, 4096)),
        (YARN + "--use-rotary-position-embeddings", {}),
        (
            YARN
            + "--rotary-scaling-factor 40 --yarn-original-max-position-embeddings 512 --mscale 1 --mscale-all-dim 1 "
            "--yarn-beta-fast 16 --yarn-beta-slow 2 --no-yarn-correction-range-round-to-int",
            scaled("yarn", 40.0, 512, yarn_beta_fast=16.0, yarn_beta_slow=2.0, yarn_attention_factor=1.0)
            | {"yarn_correction_range_round_to_int": False},
        ),
        (TYPE + "--rope-scaling-factor 40", scaled("yarn", 4.0, 8)),  # 32 positions over 8 of them
        (
            TYPE + "--beta-fast 16 --rope-scaling-mscale 0.707 --rope-scaling-mscale-all-dim 0.707",
            scaled("yarn", 4.0, 8, yarn_beta_fast=16.0, yarn_attention_factor=1.0),
        ),
        (
            ROPE + "--rope-scaling-type llama3 --rope-scaling-factor 32 --low-freq-factor 2 --high-freq-factor 8 "
            "--original-max-position-embeddings 4096",
            scaled("llama3", 32.0, 4096, rope_low_freq_factor=2.0, rope_high_freq_factor=8.0),
        ),
    ],
)
def test_flags_are_the_keys_of_one_model(arguments, keys):
    assert rope_of(arguments) == keys


def test_what_yarn_does_not_read_has_no_effect():
    found = migrated(YARN + "--use-rope-scaling --rotary-percent 0.5")
    assert line_of(found, "--use-rope-scaling") == ("no effect", "yarn does not read it")
    assert line_of(found, "--rotary-percent") == ("no effect", "yarn rotates whole heads")
    assert found.recipe.model.rotary_percent == 1.0


@pytest.mark.parametrize(
    ("arguments", "name", "kept"),
    [
        ("--use-rope-scaling --rotary-seq-len-interpolation-factor 4", "rotary_seq_len_interpolation_factor", "llama3"),
        ("--rope-scaling-type llama3 --use-rope-scaling", "use_rope_scaling", "llama3"),
        ("--rope-scaling-type longrope", "rope_scaling_type", None),
        ("--rope-scaling-type yarn", "rope_scaling_type", None),
        ("--yarn-scaling-factor 4", "yarn_scaling_factor", None),
    ],
)
def test_what_is_not_the_same_model_has_to_be_accepted(arguments, name, kept):
    with pytest.raises(MigrateError, match=f"Give --accept {name} to write it anyway"):
        migrated(ROPE + arguments)
    model = migrated(ROPE + arguments, accepted=frozenset([name])).recipe.model
    assert (model.rope_scaling_type if model.use_rope_scaling else None) == kept
