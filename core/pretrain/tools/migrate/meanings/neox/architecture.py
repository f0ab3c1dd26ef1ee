"""GPT-NeoX's settings of the model and of its kernels (NeoXArgsModel)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.meaning import Carried, NoEffect, NotSupported, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

_NORM = "norm chooses between layernorm_epsilon and rms_norm_epsilon"
_MLP = "worked out of intermediate_size or expansion_factor, activation and mlp_multiple_of, as its MLP does"
_BIAS = "use_bias_in_attn_linear and use_bias_in_mlp decide together"
_SOFTMAX = "worked out of it and the fused softmax, which computes in fp32"
_FUSION = "kernels are negotiated, and one that does not fit is not offered; section kernels names others"

ARCHITECTURE: dict[str, Meaning] = {
    "num_layers": Carried("model.num_layers"),
    "hidden_size": Carried("model.hidden_size"),
    "num_attention_heads": Carried("model.num_attention_heads"),
    "num_kv_heads": Carried("model.num_query_groups"),
    "seq_length": Carried("model.seq_length"),
    "max_position_embeddings": Carried("model.max_position_embeddings"),
    "intermediate_size": Carried("model.ffn_hidden_size", how=_MLP),
    "expansion_factor": Carried("model.ffn_hidden_size", how=_MLP),
    "mlp_multiple_of": Carried("model.ffn_hidden_size", how=_MLP),
    "activation": Carried("model.activation", how="gelu is gelu_tanh where bias_gelu_fusion computes it"),
    "mlp_type": Carried("model.activation", how="llama is a gated MLP without biases, in which silu is swiglu"),
    "bias_gelu_fusion": Carried("model.activation", how="the fused kernel computes gelu_tanh in the place of gelu"),
    "norm": Carried("model.normalization", values={"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}, how=_NORM),
    "layernorm_epsilon": Carried("model.layernorm_epsilon", how=_NORM),
    "rms_norm_epsilon": Carried("model.layernorm_epsilon", how=_NORM),
    "pos_emb": Carried(
        "model.position_embedding_type",
        values={"rotary": "rope", "learned": "learned_absolute"},
        how="learned and rotary positions are offered",
    ),
    "rotary_pct": Carried("model.rotary_percent", how="with pos_emb rotary"),
    "rotary_emb_base": Carried("model.rotary_base", how="with pos_emb rotary"),
    "no_weight_tying": Carried("model.untie_embeddings_and_output_weights"),
    "gpt_j_residual": Carried("model.parallel_residual"),
    "hidden_dropout": Carried("model.hidden_dropout"),
    "attention_dropout": Carried("model.attention_dropout"),
    "init_method": Carried("model.init_method", how="normal, small_init and wang_init are offered"),
    "init_method_std": Carried("model.init_method_std"),
    "output_layer_init_method": Carried(
        "model.output_layer_init_method", how="normal, scaled_normal, small_init and wang_init are offered"
    ),
    "use_bias_in_attn_linear": Carried("model.add_bias_linear", how=_BIAS),
    "use_bias_in_mlp": Carried("model.add_bias_linear", how=_BIAS),
    "apply_query_key_layer_scaling": Carried("model.apply_query_key_layer_scaling"),
    "attention_softmax_in_fp32": Carried("model.attention_softmax_in_fp32", how=_SOFTMAX),
    "scaled_upper_triang_masked_softmax_fusion": Carried("model.attention_softmax_in_fp32", how=_SOFTMAX),
    "scaled_masked_softmax_fusion": Carried("model.attention_softmax_in_fp32", how=_SOFTMAX),
    "make_vocab_size_divisible_by": Carried("model.make_vocab_size_divisible_by"),
    "fp16_lm_cross_entropy": Carried("precision.fp16_lm_cross_entropy"),
    "attention_config": Carried("kernels.attention", how="the kinds of attention of all layers decide together"),
    "use_triangle_attn": Carried("kernels.attention", values={True: "triangle"}, how="with attention_config"),
    "gpt_j_tied": NotSupported(
        "attention and MLP of a parallel residual have a norm each, instead of one together", unless=(False,)
    ),
    "use_bias_in_norms": Unread("GPT-NeoX builds its norms without looking at it"),
    "use_qk_layernorm": NotSupported("queries and keys are not normalized", unless=(False,)),
    "sliding_window_width": NotSupported("every token sees all before it, instead of a window of them", unless=(None,)),
    "sparsity_config": NotSupported("attention is not sparse", unless=(None, {})),
    "num_unique_layers": NotSupported("every layer has weights of its own", unless=(None,)),
    "param_sharing_style": Unread("it belongs to num_unique_layers"),
    "opt_pos_emb_offset": NotSupported("positions are counted from 0", unless=(0,)),
    "scalenorm_epsilon": Unread("it belongs to norm scalenorm, which is not offered"),
    "rpe_num_buckets": Unread("it belongs to pos_emb rpe, which is not offered"),
    "rpe_max_distance": Unread("it belongs to pos_emb rpe, which is not offered"),
    "soft_prompt_tuning": NotSupported("all weights are trained, and there is no soft prompt", unless=(None, {})),
    "soft_prompt_tuning.enabled": NotSupported("all weights are trained, and there is no soft prompt", unless=(False,)),
    "output_layer_parallelism": NoEffect("the output layer is always split by columns, over the vocabulary"),
    "use_cpu_initialization": NoEffect("weights start with the same values however they are laid out"),
    "rotary_save_freqs_buffer": NoEffect("rope's wavelengths are computed, and no checkpoint needs them"),
    "fused_kernels_build_path": NoEffect("kernels are built by the device's plugin"),
    "onnx_safe": NoEffect("it is for an export after the training; its gelu is the exact one"),
    "padded_vocab_size": Unread("GPT-NeoX works it out itself"),
    **dict.fromkeys(
        (
            "layernorm_fusion",
            "rmsnorm_fusion",
            "use_flashattn_swiglu",
            "bias_dropout_fusion",
            "rope_fusion",
            "te_columnparallel",
            "te_rowparallel",
        ),
        NoEffect(_FUSION),
    ),
    "te_layernorm_mlp": NoEffect(_FUSION),
    "te_mha": NoEffect(_FUSION),
    "te_fp8_mha": NotSupported("attention is computed in precision.dtype, not in fp8", unless=(False,)),
}
