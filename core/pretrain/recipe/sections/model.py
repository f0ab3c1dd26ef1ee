"""Section `model`: the shape of the GPT and how its weights start."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pretrain.recipe.section import Bool, Float, Int, Section


def _ffn_hidden_size(given: dict[str, Any]) -> int:
    """4 h; with swiglu 8/3 h in multiples of 64, so that three matrices are as large as two (Megatron-LM's)."""
    hidden_size: int = given.get("hidden_size", 0)
    return max(64, hidden_size * 8 // 3 // 64 * 64) if given.get("activation") == "swiglu" else 4 * hidden_size


def _kv_channels(given: dict[str, Any]) -> int:
    return int(given.get("hidden_size", 0)) // int(given.get("num_attention_heads", 1))


class ModelSection(Section):
    """The shape of the GPT and how its weights start."""

    num_layers: Int = Field(gt=0, description="Number of transformer layers.")
    hidden_size: Int = Field(gt=0, description="Width of the residual stream.")
    num_attention_heads: Int = Field(gt=0, description="Number of query heads of one layer.")
    seq_length: Int = Field(gt=0, description="Length of a training sequence in tokens.")
    activation: Literal["gelu", "gelu_tanh", "swiglu"] = Field(
        default="gelu",
        description="Activation of the MLP: gelu (exact), gelu_tanh (its tanh approximation, which Megatron-LM's and "
        "GPT-NeoX's fused bias and gelu computes) or swiglu.",
    )
    ffn_hidden_size: Int = Field(
        gt=0,
        default_factory=_ffn_hidden_size,
        description="Width of the MLP; by default 4 x hidden_size, with swiglu 8/3 x hidden_size in multiples of 64.",
    )
    num_query_groups: Int = Field(
        gt=0,
        default_factory=lambda given: given.get("num_attention_heads", 0),
        description="Number of key/value heads (grouped-query attention); by default num_attention_heads.",
    )
    kv_channels: Int = Field(
        gt=0,
        default_factory=_kv_channels,
        description="Size of one head; by default hidden_size / num_attention_heads.",
    )
    max_position_embeddings: Int = Field(
        gt=0,
        default_factory=lambda given: given.get("seq_length", 0),
        description="Number of positions that the model knows, in tokens; by default seq_length.",
    )
    position_embedding_type: Literal["learned_absolute", "rope"] = Field(
        default="learned_absolute",
        description="How a token's position enters: a learned table, or rotary embedding (rope).",
    )
    rotary_percent: Float = Field(default=1.0, gt=0, le=1, description="Fraction of each head that rope rotates.")
    rotary_base: Float = Field(default=10000.0, gt=0, description="Base of rope's wavelengths.")
    use_rope_scaling: Bool = Field(
        default=False,
        description="Whether rope's long waves are stretched for longer texts than the model first knew, as in "
        "Llama 3.1 (rope_type llama3 of Hugging Face).",
    )
    rope_scaling_factor: Float = Field(
        default=8.0,
        ge=1,
        description="How many times longer the longest waves become: 8 in Llama 3.1, 32 in Llama 3.2.",
    )
    rope_low_freq_factor: Float = Field(
        default=1.0,
        gt=0,
        description="Waves that fit at most this often into original_max_position_embeddings are stretched by the "
        "whole factor (low_freq_factor).",
    )
    rope_high_freq_factor: Float = Field(
        default=4.0,
        gt=0,
        description="Waves that fit at least this often stay as they are; those between are stretched partly "
        "(high_freq_factor).",
    )
    original_max_position_embeddings: Int = Field(
        default=8192, gt=0, description="Number of positions that the model knew before rope was scaled, in tokens."
    )
    normalization: Literal["LayerNorm", "RMSNorm"] = Field(default="LayerNorm", description="Kind of norm.")
    layernorm_epsilon: Float = Field(
        default=1e-5, gt=0, description="Added to the variance (or mean square) in a norm."
    )
    add_bias_linear: Bool = Field(default=True, description="Whether the linear layers have a bias.")
    add_qkv_bias: Bool = Field(
        default=False,
        description="Whether the projection to queries, keys and values has a bias although the other linear layers "
        "have none, as in Qwen 2.",
    )
    untie_embeddings_and_output_weights: Bool = Field(
        default=False, description="Whether the output layer has weights of its own instead of the embedding's."
    )
    parallel_residual: Bool = Field(
        default=False,
        description="x + attention(norm1(x)) + mlp(norm2(x)) as in GPT-NeoX, instead of one after the other.",
    )
    embedding_layernorm: Bool = Field(default=False, description="Whether the embedding's output is normalized.")
    hidden_dropout: Float = Field(
        default=0.1, ge=0, lt=1, description="Probability of dropout on the residual branches."
    )
    attention_dropout: Float = Field(
        default=0.1, ge=0, lt=1, description="Probability of dropout on the attention weights."
    )
    init_method: Literal["normal", "small_init", "wang_init"] = Field(
        default="normal",
        description="Standard deviation of starting weights: normal (init_method_std), small_init (sqrt(2 / (5 "
        "hidden_size))) or wang_init (2 / (num_layers sqrt(hidden_size))).",
    )
    init_method_std: Float = Field(default=0.02, gt=0, description="Standard deviation of `normal` starting weights.")
    output_layer_init_method: Literal["scaled_normal", "normal", "small_init", "wang_init"] = Field(
        default="scaled_normal",
        description="The same for the last layer of attention and MLP; scaled_normal is init_method_std / "
        "sqrt(2 num_layers).",
    )
    apply_query_key_layer_scaling: Bool = Field(
        default=False, description="Scale Q K^T by 1 / layer number and undo it in the softmax, against fp16 overflow."
    )
    attention_softmax_in_fp32: Bool = Field(
        default=True, description="Compute the softmax of fp16 or bf16 attention scores in fp32."
    )
    make_vocab_size_divisible_by: Int = Field(
        default=128, gt=0, description="The vocabulary is padded to a multiple of this times the tensor-parallel size."
    )

    @property
    def head_size(self) -> int:
        """Size of one head."""
        return self.kv_channels

    @property
    def rotary_size(self) -> int:
        """Number of dimensions of a head that are rotated; 0 without rope."""
        return int(self.kv_channels * self.rotary_percent) if self.position_embedding_type == "rope" else 0

    def padded_vocab_size(self, vocab_size: int, tensor_model_parallel_size: int) -> int:
        """Round the tokenizer's size up so that every tensor-parallel rank gets an equal, well aligned share."""
        multiple = self.make_vocab_size_divisible_by * tensor_model_parallel_size
        return -(-vocab_size // multiple) * multiple
