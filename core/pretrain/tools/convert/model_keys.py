"""What other programs call the keys of section `model` that a model's weights depend on; every key has a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pretrain.recipe.sections.model import CONSEQUENCES, ModelSection

if TYPE_CHECKING:
    from collections.abc import Mapping

Program = Literal["huggingface", "megatron", "neox", "deepspeed"]
Name = str | tuple[str, ...] | None

WITHIN = ""  # written as a part of another key, or refused with it: the program's own writer says so


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """A key's name, or names, in each program's files; None: a model in which it is not at its default is refused."""

    huggingface: Name  # in config.json
    megatron: Name  # among the arguments of Megatron-LM, in both of its formats
    neox: Name  # in the configuration of GPT-NeoX
    deepspeed: Name  # among the arguments of Megatron-DeepSpeed


def _everywhere(name: str, huggingface: Name, neox: Name = None, deepspeed: Name = None) -> Names:
    """Return Megatron-LM's name for all programs, but for those whose own name is given."""
    others = {"neox": name if neox is None else neox, "deepspeed": name if deepspeed is None else deepspeed}
    return Names(huggingface=huggingface, megatron=name, **others)


def _experts(megatron: Name, huggingface: Name) -> Names:
    """Return the names of a key that counts with experts alone, which GPT-NeoX and Megatron-DeepSpeed lack here."""
    return Names(huggingface=huggingface, megatron=megatron, neox=WITHIN, deepspeed=WITHIN)


NAMES: Mapping[str, Names] = {
    "num_layers": _everywhere("num_layers", ("num_hidden_layers", "n_layer")),
    "hidden_size": _everywhere("hidden_size", ("hidden_size", "n_embd")),
    "num_attention_heads": _everywhere("num_attention_heads", ("num_attention_heads", "n_head")),
    "activation": _everywhere("swiglu", ("hidden_act", "activation_function"), "activation"),
    "ffn_hidden_size": _everywhere("ffn_hidden_size", ("intermediate_size", "n_inner"), "intermediate_size"),
    "num_query_groups": _everywhere(
        "num_query_groups", "num_key_value_heads", "num_kv_heads", deepspeed="num_key_value_heads"
    ),
    "kv_channels": _everywhere("kv_channels", "head_dim", WITHIN),
    "max_position_embeddings": _everywhere("max_position_embeddings", ("max_position_embeddings", "n_positions")),
    "position_embedding_type": _everywhere("use_rotary_position_embeddings", "model_type", "pos_emb"),
    "rotary_percent": _everywhere("rotary_percent", "rotary_pct", "rotary_pct"),
    "rotary_base": _everywhere(
        "rotary_base", ("rope_theta", "rotary_emb_base"), "rotary_emb_base", deepspeed="rope_theta"
    ),
    "use_rope_scaling": Names(huggingface="rope_parameters", megatron="use_rope_scaling", neox=None, deepspeed=None),
    "rope_scaling_factor": Names(huggingface=WITHIN, megatron="rope_scaling_factor", neox=WITHIN, deepspeed=WITHIN),
    "rope_scaling_type": _everywhere(WITHIN, WITHIN),
    "rope_low_freq_factor": _everywhere(WITHIN, WITHIN),
    "rope_high_freq_factor": _everywhere(WITHIN, WITHIN),
    "original_max_position_embeddings": _everywhere(WITHIN, WITHIN),
    "yarn_beta_fast": _everywhere(WITHIN, WITHIN),
    "yarn_beta_slow": _everywhere(WITHIN, WITHIN),
    "yarn_attention_factor": _everywhere(WITHIN, WITHIN),
    "yarn_correction_range_round_to_int": _everywhere(WITHIN, WITHIN),
    "normalization": _everywhere("normalization", "model_type", "norm"),
    "layernorm_epsilon": _everywhere(
        "layernorm_epsilon", ("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps"), "layernorm_epsilon"
    ),
    "add_bias_linear": _everywhere("add_bias_linear", "attention_bias", "use_bias_in_attn_linear"),
    "add_qkv_bias": Names(huggingface="model_type", megatron="add_qkv_bias", neox=None, deepspeed=None),
    "qk_layernorm": Names(huggingface="model_type", megatron="qk_layernorm", neox=None, deepspeed=None),
    "window_size": Names(huggingface="sliding_window", megatron="window_size", neox=None, deepspeed=None),
    "untie_embeddings_and_output_weights": _everywhere(
        "untie_embeddings_and_output_weights", "tie_word_embeddings", "no_weight_tying"
    ),
    "parallel_residual": Names(
        huggingface="use_parallel_residual", megatron=None, neox="gpt_j_residual", deepspeed=None
    ),
    "embedding_layernorm": Names(huggingface=None, megatron=None, neox=None, deepspeed=None),
    "num_experts": Names(
        huggingface=("num_local_experts", "num_experts", "n_routed_experts"),
        megatron="num_experts",
        neox=None,
        deepspeed=None,
    ),
    "moe_ffn_hidden_size": _experts("moe_ffn_hidden_size", "moe_intermediate_size"),
    "first_k_dense_replace": _experts("moe_layer_freq", "first_k_dense_replace"),
    "moe_layer_freq": _experts("moe_layer_freq", None),
    "moe_shared_expert_intermediate_size": _experts("moe_shared_expert_intermediate_size", "n_shared_experts"),
    "moe_router_topk": _experts("moe_router_topk", "num_experts_per_tok"),
    "moe_router_score_function": _experts("moe_router_score_function", "model_type"),
    "moe_router_pre_softmax": _experts("moe_router_pre_softmax", "norm_topk_prob"),
    "moe_router_num_groups": _experts("moe_router_num_groups", "n_group"),
    "moe_router_group_topk": _experts("moe_router_group_topk", "topk_group"),
    "moe_router_topk_scaling_factor": _experts("moe_router_topk_scaling_factor", "routed_scaling_factor"),
    "moe_router_enable_expert_bias": _experts("moe_router_enable_expert_bias", "model_type"),
}


def not_held(program: Program, model: ModelSection) -> dict[str, bool]:
    """Return the keys that a program does not have -> whether the model needs them."""
    missing = [key for key, names in NAMES.items() if getattr(names, program) is None]
    idle = {"add_qkv_bias"} if model.add_bias_linear else set()  # as `pretrain.recipe.checks.effect` says of a recipe
    return {key: getattr(model, key) != ModelSection.model_fields[key].default and key not in idle for key in missing}


def _require_all() -> None:
    needed = {key for key, consequences in CONSEQUENCES.items() if consequences.is_structure}
    if wrong := sorted(needed ^ set(NAMES)):
        msg = f"{', '.join(wrong)}: give each key of section model that weights depend on a row of NAMES, and no other"
        raise TypeError(msg)


_require_all()
