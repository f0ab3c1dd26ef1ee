"""Flags that shape the model and start its weights.

core_transformer_config_from_args and validate_args in megatron/training/arguments.py, before 2024 in
megatron/arguments.py; megatron/model/transformer.py of the versions before megatron-core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.alike import alike
from pretrain.tools.migrate.meanings.meaning import Carried, NoEffect, NotSupported, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

_ACTIVATION = (
    "swiglu and the other gated ones first, then openai_gelu, then the fused bias and gelu, which is gelu_tanh"
)
_POSITION_FLAGS = "position_embedding_type, or rope with use_rotary_position_embeddings"
_GROUPS = "num_query_groups counts with group_query_attention alone; num_key_value_heads by itself"
_VOCABULARY = "the padded size / tensor-parallel ranks, or make_vocab_size_divisible_by"
_SOFTMAX = "on as well where apply_query_key_layer_scaling or the fused softmax is"
_OTHER_MODEL = "the model would compute something else: this part of it is not here"
_OF_POSITIONS = "it belongs to positions that are not here: yarn, relative ones, and those of several axes"

SIZES: dict[str, Meaning] = {
    "num_layers": Carried("model.num_layers"),
    "encoder_num_layers": Carried("model.num_layers"),
    "hidden_size": Carried("model.hidden_size"),
    "ffn_hidden_size": Carried(
        "model.ffn_hidden_size", how="by default 4 x hidden_size; with --swiglu 8/3 x hidden_size in multiples of 64"
    ),
    "num_attention_heads": Carried("model.num_attention_heads"),
    "num_query_groups": Carried("model.num_query_groups", how=_GROUPS),
    "group_query_attention": Carried("model.num_query_groups", how=_GROUPS),
    "num_key_value_heads": Carried("model.num_query_groups", how=_GROUPS),
    "kv_channels": Carried("model.kv_channels"),
    "seq_length": Carried("model.seq_length"),
    "encoder_seq_length": Carried("model.seq_length"),
    "max_position_embeddings": Carried("model.max_position_embeddings"),
    "make_vocab_size_divisible_by": Carried("model.make_vocab_size_divisible_by", how=_VOCABULARY),
    **alike(Carried("model.make_vocab_size_divisible_by", how=_VOCABULARY), "pad_vocab_size_to padded_vocab_size"),
    "pad_vocab_size": NotSupported("the vocabulary is padded to a multiple of model.make_vocab_size_divisible_by"),
    **alike(Unread("only models with a decoder of their own read it"), "decoder_num_layers decoder_seq_length"),
}
"""Numbers of layers, heads, positions and tokens."""

PARTS: dict[str, Meaning] = {
    "swiglu": Carried("model.activation", {True: "swiglu"}, _ACTIVATION),
    "glu_activation": Carried("model.activation", {"swiglu": "swiglu"}, _ACTIVATION),
    "openai_gelu": Carried("model.activation", {True: "gelu_tanh"}, _ACTIVATION),
    "bias_gelu_fusion": Carried(
        "model.activation",
        {True: "gelu_tanh", False: "gelu"},
        _ACTIVATION,
        "the fused kernel computes the tanh approximation, gelu is the exact one and the default",
    ),
    "onnx_safe": Carried("model.activation", how=_ACTIVATION),
    "activation_func": Carried(
        "model.activation", {"swiglu": "swiglu", "gelu": "gelu"}, "it alone in a --yaml-cfg file, of which it is a name"
    ),
    "use_te_activation_func": Carried("model.activation", {True: "gelu_tanh"}, _ACTIVATION),
    "position_embedding_type": Carried(
        "model.position_embedding_type",
        {
            "learned_absolute": "learned_absolute",
            "absolute": "learned_absolute",
            "learned": "learned_absolute",
            "rope": "rope",
            "rotary": "rope",
        },
        _POSITION_FLAGS,
    ),
    "use_rotary_position_embeddings": Carried("model.position_embedding_type", {True: "rope"}, _POSITION_FLAGS),
    "add_position_embedding": Carried("model.position_embedding_type", how=_POSITION_FLAGS),
    "rotary_percent": Carried("model.rotary_percent"),
    "rotary_base": Carried("model.rotary_base"),
    "rope_theta": Carried("model.rotary_base"),
    "use_rope_scaling": Carried("model.use_rope_scaling"),
    "rope_scaling_factor": Carried("model.rope_scaling_factor"),
    "normalization": Carried(
        "model.normalization",
        {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm", "LayerNorm": "LayerNorm", "RMSNorm": "RMSNorm"},
        "in upper and lower case alike",
    ),
    "layernorm_epsilon": Carried("model.layernorm_epsilon"),
    "norm_epsilon": Carried("model.layernorm_epsilon"),
    "add_bias_linear": Carried("model.add_bias_linear"),
    "add_qkv_bias": Carried("model.add_qkv_bias"),
    "untie_embeddings_and_output_weights": Carried("model.untie_embeddings_and_output_weights"),
    "embed_layernorm": Carried("model.embedding_layernorm"),
    "hidden_dropout": Carried("model.hidden_dropout"),
    "attention_dropout": Carried("model.attention_dropout"),
    "apply_query_key_layer_scaling": Carried("model.apply_query_key_layer_scaling"),
    "attention_softmax_in_fp32": Carried("model.attention_softmax_in_fp32", {True: True}, _SOFTMAX),
}
"""Norms, positions, activations and biases."""

WEIGHTS: dict[str, Meaning] = {
    "init_method_std": Carried("model.init_method_std"),
    "init_method_xavier_uniform": NotSupported(
        "weights start from normal distributions (model.init_method), not from Xavier's uniform one"
    ),
    "embedding_init_method_std": NotSupported("embeddings start with model.init_method_std like all other weights"),
    "data_parallel_random_init": NotSupported("all replicas start with the same weights"),
    "perform_initialization": NoEffect("weights always get their first values; those of a checkpoint replace them"),
    "use_cpu_initialization": NoEffect("weights start with the same values however they are laid out"),
    "init_model_with_meta_device": NoEffect("weights start with the same values however they are laid out"),
    "sync_tp_duplicated_parameters": NoEffect("weights that all tensor-parallel ranks have get the same gradients"),
}
"""First values of weights."""

ABSENT: dict[str, Meaning] = {
    "apply_layernorm_1p": NotSupported(
        "norms keep their weights as they are, not less 1: they start alike, but weights of a checkpoint differ by 1"
    ),
    "layernorm_zero_centered_gamma": NotSupported(
        "norms keep their weights as they are, not less 1: they start alike, but weights of a checkpoint differ by 1"
    ),
    "apply_residual_connection_post_layernorm": NotSupported("the residual is taken before the norm, not after it"),
    "squared_relu": NotSupported("model.activation is gelu, gelu_tanh or swiglu; there is no squared ReLU"),
    "quick_geglu": NotSupported("model.activation is gelu, gelu_tanh or swiglu; there is no quick GEGLU"),
    "rotary_interleaved": NotSupported("rope rotates the halves of a head, not neighbouring dimensions"),
    "rotary_seq_len_interpolation_factor": NotSupported("rope's positions are not divided by a factor", (1, 1.0)),
    "rope_type": NotSupported("rope is the plain one; there is no yarn", ("rope",)),
    "no_rope_freq": NotSupported("all layers have the same positions"),
    "window_size": NotSupported("a token sees all before it, not only a window of them"),
    "window_attn_skip_freq": Unread("it belongs to window_size"),
    "softmax_type": NotSupported("attention's softmax is the plain one", ("vanilla",)),
    "spec": NotSupported("the model is always megatron-core's GPT, and no module of your own replaces a part of it"),
    "num_unique_layers": NotSupported("every layer has weights of its own"),
    "param_sharing_style": NotSupported("every layer has weights of its own"),
    "freeze_all_layers": NotSupported("all weights are trained"),
    **alike(NotSupported("learning rate and first weights do not follow from the width"), "use_mup"),
    **alike(
        Unread("it belongs to use_mup"),
        "mup_attn_scale_power mup_base_head_dim mup_base_hidden_size mup_embedding_mult mup_output_mult mup_width_mult",
    ),
    **alike(
        NotSupported(_OTHER_MODEL),
        """activation_func_clamp_value glu_linear_offset qk_layernorm qk_l2_norm qk_clip attention_output_gate
        softmax_scale enable_gpt_oss""",
    ),
    **alike(Unread("it belongs to qk_clip"), "qk_clip_alpha qk_clip_threshold"),
    **alike(NotSupported("all layers are alike"), "heterogeneous_layers_config_path"),
    **alike(NotSupported("all layers are alike"), "heterogeneous_layers_config_encoded_json"),
    **alike(
        Unread(_OF_POSITIONS),
        """yarn_beta_fast yarn_beta_slow yarn_correction_range_round_to_int yarn_original_max_position_embeddings
        mrope_section relative_attention_num_buckets relative_attention_max_distance""",
    ),
    "rotary_scaling_factor": Unread("it belongs to multi_latent_attention"),
    **alike(
        NoEffect("the model is always megatron-core's"),
        "use_mcore_models use_legacy_models deprecated_use_mcore_models",
    ),
    "enable_experimental": NoEffect("it only permits other flags"),
}
"""Parts of a model that ours does not have."""

MODEL = SIZES | PARTS | WEIGHTS | ABSENT
"""All of them, by dest."""
