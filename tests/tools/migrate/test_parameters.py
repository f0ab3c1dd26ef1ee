"""Parameters of a source, counted by its flags, are those of the recipe that is made of them."""

from __future__ import annotations

import pytest

from pretrain.report.flops import parameter_count
from pretrain.tools.migrate.parameters import source_parameters
from pretrain.tools.migrate.programs import program
from pretrain.tools.migrate.setting import Setting, Settings
from tools.migrate.megatron.small_training import migrated


def counted(**flags):
    sizes = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 32}
    stated = {name: Setting(name, value, name) for name, value in (sizes | flags).items()}
    return source_parameters(Settings(program("megatron-lm"), stated), vocabulary=128)


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--swiglu --disable-bias-linear --normalization RMSNorm --use-rotary-position-embeddings",
        "--group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights",
        "--ffn-hidden-size 100 --kv-channels 8 --disable-bias-linear --add-qkv-bias",
    ],
)
def test_a_dense_gpt_has_the_parameters_of_its_recipe(arguments):
    """The model itself is compared with `parameter_count` in tests/model/test_gpt.py."""
    found = migrated(f"{arguments} --train-iters 5")
    (line,) = [notice for notice in found.notices if notice.startswith("The source trains")]
    assert line == (
        f"The source trains {parameter_count(found.recipe.model, 0):,} parameters, "
        f"this recipe {parameter_count(found.recipe.model, 0):,}, without those of the vocabulary."
    )


def test_experts_and_norms_of_queries_are_counted():
    mlp = 2 * 64 * 256 + 256 + 64
    assert counted(num_experts=8) - counted() == 2 * (7 * mlp + 8 * 64)
    shared = counted(num_experts=8, moe_shared_expert_intermediate_size="128") - counted(num_experts=8)
    assert shared == 2 * (2 * 64 * 128 + 128 + 64)
    assert counted(qk_layernorm=True) - counted() == 2 * 2 * 2 * 16


ROPE = "--swiglu --position-embedding-type rope"


@pytest.mark.parametrize(
    "other", ["attention_output_gate", "post_norm", "softmax_type learnable", "lora_r 8", "input_embeds_norm"]
)
def test_of_a_model_that_the_formula_does_not_count_nothing_is_said(other):
    name = other.split()[0]
    found = migrated(f"{ROPE} --train-iters 5 --{other.replace('_', '-')}", accepted=frozenset([name]))
    assert not any(notice.startswith("The source trains") for notice in found.notices)


EXPERTS = f"{ROPE} --disable-bias-linear --num-experts 4 --moe-ffn-hidden-size 24"


@pytest.mark.parametrize(
    "arguments",
    [
        *("", "--moe-layer-freq 2", "--moe-layer-freq '([0]*1+[1]*3)'", "--qk-layernorm"),
        "--moe-shared-expert-intermediate-size 48",
        "--first-k-dense-replace 1 --moe-layer-freq 1 --n-shared-experts 2",
    ],
)
def test_a_mixture_has_the_parameters_of_its_recipe(arguments):
    found = migrated(f"{EXPERTS} {arguments} --train-iters 5")
    (line,) = [notice for notice in found.notices if notice.startswith("The source trains")]
    count = f"{parameter_count(found.recipe.model, 0):,}"
    assert line == f"The source trains {count} parameters, this recipe {count}, without those of the vocabulary."
    assert found.recipe.model.num_experts == 4


def test_without_sizes_nothing_is_counted():
    assert source_parameters(Settings(program("megatron-lm")), 128) is None
