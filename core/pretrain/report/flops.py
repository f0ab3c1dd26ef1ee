"""Count the FLOPs and parameters of a recipe's model: one formula for every backend and engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.recipe.sections.model import ModelSection


def flops_per_sequence(model: ModelSection, vocab_size: int) -> int:
    """Return the floating-point operations of forward and backward pass over one sequence.

    Matmuls only, a multiply-add counted as two, the backward pass as twice the forward pass. Per layer and token, with
    h = hidden size, n heads and g key/value heads of size d, f = feed-forward size, s = sequence length:

        query, key, value      2 h d (n + 2 g)
        scores and context     4 s n d
        output projection      2 n d h
        MLP                    4 h f     (swiglu: 6 h f)

    and 2 h V per token for the logits. This is equation 3 of Narayanan et al. 2021 ("Efficient Large-Scale Language
    Model Training on GPU Clusters Using Megatron-LM") without its factor 4/3 for recompute, written for
    grouped-query attention, gated MLPs and any feed-forward size. As there, attention is counted as the full s x s
    square although a causal model needs half of it, so that figures compare with published ones. Recompute is not
    counted, even if the recipe uses it, because it is not progress.

    Args:
        model: the recipe's section.
        vocab_size: V, rows of the output layer, padding included.
    """
    hidden, heads, head_size = model.hidden_size, model.num_attention_heads, model.kv_channels
    attention = 2 * hidden * head_size * (heads + 2 * model.num_query_groups) + 2 * heads * head_size * hidden
    square = 4 * model.seq_length * heads * head_size
    mlp = (6 if model.activation == "swiglu" else 4) * hidden * model.ffn_hidden_size
    forward_per_token = model.num_layers * (attention + square + mlp) + 2 * hidden * vocab_size
    return 3 * model.seq_length * forward_per_token


def parameter_count(model: ModelSection, vocab_size: int) -> int:
    """Return the number of trained parameters over all ranks; tied embeddings count once.

    Args:
        model: the recipe's section.
        vocab_size: rows of the embedding, padding included.
    """
    hidden = model.hidden_size
    norm = hidden if model.normalization == "RMSNorm" else 2 * hidden
    count = vocab_size * hidden * (2 if model.untie_embeddings_and_output_weights else 1)
    if model.position_embedding_type == "learned_absolute":
        count += model.max_position_embeddings * hidden
    if model.embedding_layernorm:
        count += 2 * hidden
    return count + model.num_layers * (2 * norm + _linear_parameters(model)) + norm


def _linear_parameters(model: ModelSection) -> int:
    """Return the parameters of one layer's four linear maps."""
    hidden, heads = model.hidden_size, model.kv_channels * model.num_attention_heads
    query_key_value = heads + 2 * model.kv_channels * model.num_query_groups
    up = model.ffn_hidden_size * (2 if model.activation == "swiglu" else 1)
    weights = hidden * (query_key_value + heads + up + model.ffn_hidden_size)
    if model.add_bias_linear:
        return weights + query_key_value + hidden + up + hidden
    return weights + (query_key_value if model.add_qkv_bias else 0)
