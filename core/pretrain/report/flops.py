"""FLOPs and parameters of a recipe's model, one formula for all backends and engines, and the speed from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.recipe.sections.model import ModelSection


def flops_per_sequence(model: ModelSection, vocab_size: int) -> int:
    """Return the floating-point operations of forward and backward pass over one sequence.

    Matmuls only, a multiply-add counted as two, the backward pass as twice the forward pass. Equation 3 of Narayanan et
    al. 2021 ("Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM") without its factor 4/3
    for recompute, which is not progress, for any feed-forward size, gated MLPs and grouped-query attention. Of
    attention it counts the keys that each token sees, where the equation has the full square: under the causal mask,
    as Megatron-LM does since (`num_floating_point_operations` of megatron/training/training.py, half the square), and
    in the window. A sequence counts as one document. `vocab_size` includes the padding.
    """
    hidden, heads, head_size = model.hidden_size, model.num_attention_heads, model.kv_channels
    # For each layer and token: query, key, value and the output's projection; scores and context; the MLP, or a
    # token's experts, the shared ones and their router. Then logits.
    attention = 2 * hidden * head_size * (heads + 2 * model.num_query_groups) + 2 * heads * head_size * hidden
    scores = 4 * seen_keys(model) * heads * head_size
    sparse = model.moe_router_topk * _matrices(model, model.moe_ffn_hidden_size) + _beside_experts(model)
    dense = _matrices(model, model.ffn_hidden_size)
    mlps = 2 * sum(sparse if has_experts else dense for has_experts in model.layers_with_experts)
    forward_per_token = model.num_layers * attention + mlps + 2 * hidden * vocab_size
    return 3 * (model.seq_length * forward_per_token + model.num_layers * scores)


def seen_keys(model: ModelSection) -> int:
    """Return the keys that the tokens of one sequence, a single document, see; summed over the tokens."""
    length = model.seq_length
    window = length if model.window_size is None else min(model.window_size, length)
    return window * (window + 1) // 2 + (length - window) * window


def parameter_count(model: ModelSection, vocab_size: int) -> int:
    """Return the trained parameters of all ranks, tied embeddings once; `vocab_size` includes the padding.

    The bias of experts is not among them: no gradient moves it.
    """
    hidden = model.hidden_size
    of_width = 1 if model.normalization == "RMSNorm" else 2  # weights, and biases, of a norm
    norm = of_width * hidden
    count = vocab_size * hidden * (2 if model.untie_embeddings_and_output_weights else 1)
    if model.position_embedding_type == "learned_absolute":
        count += model.max_position_embeddings * hidden
    if model.embedding_layernorm:
        count += norm
    of_heads = 2 * of_width * model.kv_channels if model.qk_layernorm else 0
    dense = (model.num_layers - sum(model.layers_with_experts)) * _mlp_parameters(model)
    sparse = expert_parameter_count(model) + sum(model.layers_with_experts) * _beside_experts(model)
    return count + model.num_layers * (2 * norm + of_heads + _attention_parameters(model)) + dense + sparse + norm


def active_parameter_count(model: ModelSection, vocab_size: int) -> int:
    """Return the parameters that compute for one token: all but those of the experts that it is not sent to."""
    experts = expert_parameter_count(model)
    active = experts * model.moe_router_topk // (model.num_experts or model.moe_router_topk)
    return parameter_count(model, vocab_size) - experts + active


def expert_parameter_count(model: ModelSection) -> int:
    """Return how many of the parameters are those of experts that a router chooses from."""
    each = _matrices(model, model.moe_ffn_hidden_size)
    return sum(model.layers_with_experts) * (model.num_experts or 0) * each


def active_text(model: ModelSection, vocab_size: int, shown: Callable[[int], str] = "{:,}".format) -> str:
    """Return ", of which N compute for a token", to follow the parameters' number; "" for a model without experts."""
    if not any(model.layers_with_experts):
        return ""
    return f", of which {shown(active_parameter_count(model, vocab_size))} compute for a token"


def _attention_parameters(model: ModelSection) -> int:
    """Return the parameters of one layer's linear maps to queries, keys and values, and of their output."""
    hidden, heads = model.hidden_size, model.kv_channels * model.num_attention_heads
    query_key_value = heads + 2 * model.kv_channels * model.num_query_groups
    weights = hidden * (query_key_value + heads)
    if model.add_bias_linear:
        return weights + query_key_value + hidden
    return weights + (query_key_value if model.add_qkv_bias else 0)


def _mlp_parameters(model: ModelSection) -> int:
    """Return the parameters of one layer's MLP."""
    biases = _gates(model) * model.ffn_hidden_size + model.hidden_size if model.add_bias_linear else 0
    return _matrices(model, model.ffn_hidden_size) + biases


def _beside_experts(model: ModelSection) -> int:
    """Return the parameters of one layer's router and shared experts, with which every token computes."""
    shared = _matrices(model, model.moe_shared_expert_intermediate_size or 0)
    return shared + model.hidden_size * (model.num_experts or 0)


def _matrices(model: ModelSection, width: int) -> int:
    """Return the weights of an MLP of a width."""
    return model.hidden_size * width * (_gates(model) + 1)


def _gates(model: ModelSection) -> int:
    """Return how many numbers the activation takes for one that it returns."""
    return 2 if model.activation == "swiglu" else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Speedometer:
    """Computes a run's speed; without `peak_flops`, FLOP/s of one device, there is no MFU."""

    seq_length: int
    flops_per_sequence: int
    world_size: int
    peak_flops: float | None

    def measure(self, *, iterations: int, samples: int, seconds: float) -> dict[str, float | None]:
        """Return the metrics of speed of an interval of wall time, by the table's names; `samples` of all ranks."""
        samples_per_second = samples / seconds
        flops = samples_per_second * self.flops_per_sequence / self.world_size
        return {
            "seconds_per_iteration": seconds / iterations,
            "samples_per_second": samples_per_second,
            "tokens_per_second_per_device": samples_per_second * self.seq_length / self.world_size,
            "tflops_per_device": flops / 1e12,
            "mfu": None if self.peak_flops is None else flops / self.peak_flops,
        }
