"""Arguments of Megatron-LM and its forks are the settings that their models were computed with, or are refused."""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path

import pytest

from pretrain.errors import CheckpointError
from pretrain.tools.convert.formats.megatron_settings import ALLOWED, OF_ROUTER, VOCAB_SIZE, settings_of, vocab_size_of

TOLD = {
    *("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "ffn_hidden_size", "kv_channels"),
    *(
        "layernorm_epsilon",
        "normalization",
        "add_bias_linear",
        "add_qkv_bias",
        "qk_layernorm",
        "gated_linear_unit",
        "activation_func",
    ),
    *("bias_activation_fusion", "use_te_activation_func", "window_size"),
    *("moe_ffn_hidden_size", "moe_layer_freq", "moe_shared_expert_intermediate_size", *OF_ROUTER),
    "moe_router_load_balancing_type",
}
"""Fields that arguments or the weights' shapes tell us."""

ARGUMENTS = {
    "num_moe_experts": "num_experts",
    "layernorm_zero_centered_gamma": "apply_layernorm_1p",
    "heterogeneous_block_specs": "heterogeneous_layers_config_path",
}
"""Field of the configuration -> argument that sets it."""

OF_REFUSED = r"dsa_.+|linear_.+|mamba_.+|use_mamba.+|mtp_loss_.+|mrope_.+"
"""Fields that count only with an argument, or a kind of position embedding, that is refused."""

OF_TRAINING = (
    r"moe_(aux_loss|z_loss|input_jitter|router_bias_update|expert_capacity|pad_expert|token_drop).+|.*init_.+|init_method|.+_dropout|qk_clip.*|log_max_.+|"
    r"calculate_per_token_loss|test_mode"
)
OF_COMPUTATION = (
    r"(fp8|fp4|recompute|cuda_graph|enable_cuda|external_cuda|inference|cp_comm|tp_only|symmetric|use_kitchen|kitchen|"
    r"fine_grained|offload|min_offloaded|persist|memory_efficient|distribute_saved|apply_rope_fusion|fused|masked_|"
    r"bias_dropout|use_fused|use_inference|flash_|batch_inv|clone_|disable_|config_logger|hetereogenous_dist|mlp_chunks|"
    r"first_last_layers_bf16|num_layers_at|attention_softmax_in|attention_backend|apply_query_key_layer|quant_recipe|"
    r"moe_(shared_expert_overlap|router_padding|router_dtype|router_fusion|grouped_gemm|use_legacy|token_dispatcher|"
    r"enable_|flex_|per_layer_logging|layer_recompute|permute_fusion|deepep|hybridep)|"
    r"fp32_residual|activation_func_fp8|transformer_impl).*"
)
"""Fields of precision and kernels, by the beginnings of their names."""

OF_LAYOUT = r"(num_layers_in|account_for|pipeline_model).*"


def settings_told(args):
    return settings_of(Path("made"), args, {}, orders_gate=True)


def test_every_field_of_megatron_cores_configuration_is_known_or_refused():
    from megatron.core.model_parallel_config import ModelParallelConfig
    from megatron.core.transformer.transformer_config import TransformerConfig

    of_layouts = {field.name for field in dataclasses.fields(ModelParallelConfig)}
    fields = {field.name for field in dataclasses.fields(TransformerConfig)} - of_layouts
    without_effect = re.compile("|".join((OF_REFUSED, OF_TRAINING, OF_COMPUTATION, OF_LAYOUT)))
    left = {name for name in fields - TOLD if without_effect.fullmatch(name) is None}
    assert {ARGUMENTS.get(name, name) for name in left} <= set(ALLOWED)
    assert len(left) > 15


@pytest.mark.parametrize("name", ALLOWED)
def test_what_ours_does_not_have_is_refused_by_its_argument(name):
    with pytest.raises(CheckpointError, match=f"{name} 3.5"):
        settings_told({name: 3.5})
    for value in (None, *ALLOWED[name]):
        settings_told({name: value})


@pytest.mark.parametrize(
    ("args", "activation"),
    [
        ({}, "gelu_tanh"),  # releases of 2019
        ({"openai_gelu": False}, "gelu"),  # v1.0
        ({"openai_gelu": True}, "gelu_tanh"),
        ({"bias_gelu_fusion": True, "onnx_safe": True}, "gelu_tanh"),  # 2.x and bigscience's
        ({"bias_gelu_fusion": True, "onnx_safe": True, "swiglu": False}, "gelu"),  # 3.0 and microsoft's
        ({"bias_gelu_fusion": False, "use_te_activation_func": True}, "gelu_tanh"),
        ({"bias_gelu_fusion": False, "swiglu": True}, "swiglu"),
        ({"bias_gelu_fusion": True, "glu_activation": "swiglu"}, "swiglu"),
    ],
)
def test_the_activation_is_that_of_the_release(args, activation):
    assert settings_told(args)["activation"] == activation


@pytest.mark.parametrize(("given", "window"), [(None, None), ((-1, 0), None), ((0, 0), 1), ([511, 0], 512)])
def test_the_window_counts_the_token_itself(given, window):
    """get_sliding_window_causal_mask of megatron-core shows a token so many before its own."""
    assert settings_told({"window_size": given})["window_size"] == window


@pytest.mark.parametrize(("given", "named"), [((5, -1), "5,-1"), ((-2, 0), "-2,0"), ((1, 2, 3), "of type"), (7, "7")])
def test_a_window_that_also_shows_later_tokens_is_refused(given, named):
    with pytest.raises(CheckpointError, match=f"window_size {named}"):
        settings_told({"window_size": given})


def test_a_gate_that_is_last_is_refused_where_nothing_orders_it():
    with pytest.raises(CheckpointError, match="glu_activation swiglu"):
        settings_of(Path("made"), {"glu_activation": "swiglu"}, {})


def test_the_vocabularys_size_is_told_by_our_own_checkpoints_alone():
    assert vocab_size_of({"vocab_size": 9}, 10) is None
    assert [vocab_size_of({VOCAB_SIZE: size}, 10) for size in (0, 9, 10, 11, "9", True)] == [None, 9, 10, *[None] * 3]


@pytest.mark.parametrize("name", ["qk_l2_norm", "position_embedding_type", "num_experts"])
def test_a_value_that_would_be_endless_as_text_is_not_written_out(name):
    endless = [1]
    for _ in range(60):
        endless = [endless, endless]
    value = endless if name != "num_experts" else {1: endless}
    with pytest.raises(CheckpointError, match=f"{name} of type "):
        settings_told({name: value})
    with pytest.raises(CheckpointError, match="qk_l2_norm of type int"):
        settings_told({"qk_l2_norm": 10**5000})
    told = settings_told({"hidden_size": argparse.Namespace(wide=endless), "rope_theta": endless})
    assert (told["hidden_size"], told["rotary_base"]) == ("of type Namespace", "of type list")


EXPERTS = {"num_experts": 8, "num_layers": 4}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({}, {}),
        ({"moe_layer_freq": 2}, {"moe_layer_freq": 2}),
        ({"moe_layer_freq": [0, 1, 1, 1]}, {"first_k_dense_replace": 1, "moe_layer_freq": 1}),
        ({"moe_layer_freq": [0, 0, 1, 0]}, {"first_k_dense_replace": 2, "moe_layer_freq": 2}),
        ({"moe_router_num_groups": 1, "moe_router_group_topk": 1, "moe_router_topk": 4}, {"moe_router_topk": 4}),
        ({"moe_router_topk_scaling_factor": None}, {}),
    ],
)
def test_experts_are_those_of_the_arguments(args, told):
    found = settings_of(Path("made"), EXPERTS | args, {}, takes_experts=True)
    assert {name: value for name, value in found.items() if "moe_" in name or "dense" in name} == told
    assert found["num_experts"] == 8


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"moe_layer_freq": [1, 1, 0, 1]}, "experts in layers that first_k_dense_replace and moe_layer_freq"),
        ({"moe_layer_freq": [1] * 5}, "experts in layers"),
        ({"moe_router_load_balancing_type": ["sinkhorn"]}, "sinkhorn"),
    ],
)
def test_experts_that_ours_are_not_are_refused(args, named):
    with pytest.raises(CheckpointError, match=named):
        settings_of(Path("made"), EXPERTS | args, {}, takes_experts=True)
    with pytest.raises(CheckpointError, match="num_experts 8"):
        settings_told(EXPERTS)
