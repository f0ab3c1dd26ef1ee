"""Rope's scaling in Megatron-LM's flags; what they cannot say is told."""

from __future__ import annotations

import pytest

from tools.migrate.to_megatron.written import added, written

ROPE, SCALED = "model.position_embedding_type=rope", "model.use_rope_scaling=true"
YARN, LINEAR, DYNAMIC = (f"model.rope_scaling_type={kind}" for kind in ("yarn", "linear", "dynamic"))


@pytest.mark.parametrize(
    ("overrides", "flags"),
    [
        ((), ["--position-embedding-type rope"]),
        (
            (SCALED, "model.rope_scaling_factor=32"),
            ["--position-embedding-type rope", "--use-rope-scaling", "--rope-scaling-factor 32.0"],
        ),
        ((SCALED, LINEAR), ["--position-embedding-type rope", "--rotary-seq-len-interpolation-factor 8"]),
        (
            (SCALED, YARN, "model.yarn_attention_factor=1", "model.yarn_correction_range_round_to_int=false"),
            [
                *("--position-embedding-type yarn", "--rotary-scaling-factor 8.0"),
                *("--yarn-original-max-position-embeddings 8192", "--yarn-beta-fast 32.0", "--yarn-beta-slow 1.0"),
                *("--mscale 0.0", "--no-yarn-correction-range-round-to-int"),
            ],
        ),
    ],
)
def test_flags(overrides: tuple[str, ...], flags: list[str]):
    assert added(ROPE, *overrides) == flags
    assert written(ROPE, *overrides).left_out == ()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((DYNAMIC,), "model.rope_scaling_type=dynamic: rope is not scaled there"),
        ((LINEAR, "model.rope_scaling_factor=2.5"), "model.rope_scaling_factor=2.5: --rotary-seq-len-interpolation"),
        ((YARN, "model.rotary_percent=0.5"), "model.rotary_percent=0.5: yarn rotates whole heads"),
        (
            (YARN, "model.rope_scaling_factor=1", "model.yarn_attention_factor=2"),
            "model.yarn_attention_factor=2.0: cos and sin have no factor",
        ),
        (
            ("model.original_max_position_embeddings=64",),
            "model.original_max_position_embeddings=64: rope is scaled there with the numbers of Llama 3.1",
        ),
    ],
)
def test_what_has_no_flag_is_told(overrides: tuple[str, ...], said: str):
    (line,) = written(ROPE, SCALED, *overrides).left_out
    assert line.startswith(said)
