"""Section `model`: the shape of the GPT and how its weights start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from pretrain.recipe.section import Bool, Float, Int, Section

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _ffn_hidden_size(given: dict[str, Any]) -> int:
    """4 h; with swiglu 8/3 h in multiples of 64, so that three matrices are as large as two (Megatron-LM's)."""
    hidden_size: int = given.get("hidden_size", 0)
    return max(64, hidden_size * 8 // 3 // 64 * 64) if given.get("activation") == "swiglu" else 4 * hidden_size


def _kv_channels(given: dict[str, Any]) -> int:
    return int(given.get("hidden_size", 0)) // int(given.get("num_attention_heads", 1))


def _as(other: str) -> Callable[[dict[str, Any]], int]:
    return lambda given: int(given.get(other, 0))


RopeScaling = Literal["llama3", "linear", "dynamic", "yarn"]
OutputInit = Literal["scaled_normal", "normal", "small_init", "wang_init"]
ALWAYS, ANY = object(), object()


@dataclass(frozen=True, kw_only=True, slots=True)
class Consequences:
    """What depends on a key of the section `model`. Every key says it; one that does not is an error at import."""

    shapes_weights: bool = False  # with another value weights have other names or shapes
    changes_function: bool = False  # the same weights compute something else, beyond rounding and dropout
    parameters: bool = False  # `pretrain.report.flops.parameter_count` counts with it
    flops: bool = False  # `pretrain.report.flops.flops_per_sequence` counts with it
    # Value of all models that were saved before the key existed. ALWAYS: it has been there from the first checkpoint
    # on; ANY: the first checkpoints do not tell it.
    before: Any = ALWAYS

    @property
    def is_structure(self) -> bool:
        """Whether a checkpoint's weights fit this value alone."""
        return self.shapes_weights or self.changes_function


NONE = Consequences()
FUNCTION = Consequences(changes_function=True)
PART = Consequences(shapes_weights=True, changes_function=True, parameters=True)
"""A part of the model that is there or not, without matmuls of its own."""
SIZE = replace(PART, flops=True)
TABLE = Consequences(shapes_weights=True, parameters=True)


class ModelSection(Section):
    """The shape of the GPT and how its weights start."""

    num_layers: Annotated[Int, SIZE] = Field(gt=0)
    """Number of transformer layers."""
    hidden_size: Annotated[Int, SIZE] = Field(gt=0)
    """Width of the residual stream."""
    num_attention_heads: Annotated[Int, SIZE] = Field(gt=0)
    """Number of query heads of one layer."""
    seq_length: Annotated[Int, Consequences(flops=True)] = Field(gt=0)
    """Length of a training sequence in tokens."""
    activation: Annotated[Literal["gelu", "gelu_tanh", "swiglu"], SIZE] = "gelu"
    """Activation of the MLP: gelu (exact), gelu_tanh (its tanh approximation, which Megatron-LM's and GPT-NeoX's fused
    bias and gelu computes) or swiglu."""
    ffn_hidden_size: Annotated[Int, SIZE] = Field(gt=0, default_factory=_ffn_hidden_size)
    """Width of the MLP; by default 4 x hidden_size, with swiglu 8/3 x hidden_size in multiples of 64."""
    num_query_groups: Annotated[Int, SIZE] = Field(gt=0, default_factory=_as("num_attention_heads"))
    """Number of key/value heads (grouped-query attention); by default num_attention_heads."""
    kv_channels: Annotated[Int, SIZE] = Field(gt=0, default_factory=_kv_channels)
    """Size of one head; by default hidden_size / num_attention_heads."""
    max_position_embeddings: Annotated[Int, TABLE] = Field(gt=0, default_factory=_as("seq_length"))
    """Number of positions that the model knows, in tokens; by default seq_length."""
    position_embedding_type: Annotated[Literal["learned_absolute", "rope"], PART] = "learned_absolute"
    """How a token's position enters: a learned table, or rotary embedding (rope)."""
    rotary_percent: Annotated[Float, FUNCTION] = Field(default=1.0, gt=0, le=1)
    """Fraction of each head that rope rotates."""
    rotary_base: Annotated[Float, FUNCTION] = Field(default=10000.0, gt=0)
    """Base of rope's wavelengths."""
    use_rope_scaling: Annotated[Bool, replace(FUNCTION, before=False)] = False
    """Whether rope's waves are stretched for longer texts than the model first knew, as rope_scaling_type says."""
    rope_scaling_type: Annotated[RopeScaling, replace(FUNCTION, before="llama3")] = "llama3"
    """Hugging Face's rope_type: llama3 and yarn stretch long waves, yarn also scales cos and sin; linear stretches all;
    dynamic (NTK) raises rotary_base as seq_length needs it, which generation keeps."""
    rope_scaling_factor: Annotated[Float, replace(FUNCTION, before=8.0)] = Field(default=8.0, ge=1)
    """How many times longer the longest waves become, 8 in Llama 3.1; with dynamic
    1 + factor x (seq_length / original_max_position_embeddings - 1) times."""
    rope_low_freq_factor: Annotated[Float, replace(FUNCTION, before=1.0)] = Field(default=1.0, gt=0)
    """Waves that fit at most this often into original_max_position_embeddings are stretched by the whole factor
    (low_freq_factor)."""
    rope_high_freq_factor: Annotated[Float, replace(FUNCTION, before=4.0)] = Field(default=4.0, gt=0)
    """Waves that fit at least this often stay as they are; those between are stretched partly (high_freq_factor)."""
    original_max_position_embeddings: Annotated[Int, replace(FUNCTION, before=8192)] = Field(default=8192, gt=0)
    """Number of positions that the model knew before rope was scaled, in tokens."""
    yarn_beta_fast: Annotated[Float, replace(FUNCTION, before=32.0)] = Field(default=32.0, gt=0)
    """Waves that fit at least this often into original_max_position_embeddings stay as they are (beta_fast)."""
    yarn_beta_slow: Annotated[Float, replace(FUNCTION, before=1.0)] = Field(default=1.0, gt=0)
    """Waves that fit at most this often are stretched by the whole factor; those between partly (beta_slow)."""
    yarn_attention_factor: Annotated[Float | None, replace(FUNCTION, before=None)] = Field(default=None, gt=0)
    """Factor of cos and sin (attention_factor), by default 0.1 ln(rope_scaling_factor) + 1; where mscale and
    mscale_all_dim are equal, as in DeepSeek's models, it is 1."""
    yarn_correction_range_round_to_int: Annotated[Bool, replace(FUNCTION, before=True)] = True
    """Whether the pairs of dimensions between which waves are stretched partly are whole numbers (truncate)."""
    normalization: Annotated[Literal["LayerNorm", "RMSNorm"], PART] = "LayerNorm"
    """Kind of norm."""
    layernorm_epsilon: Annotated[Float, replace(FUNCTION, before=ANY)] = Field(default=1e-5, gt=0)
    """Added to the variance (or mean square) in a norm."""
    add_bias_linear: Annotated[Bool, PART] = True
    """Whether the linear layers have a bias."""
    add_qkv_bias: Annotated[Bool, replace(PART, before=False)] = False
    """Whether the projection to queries, keys and values has a bias although the other linear layers have none, as in
    Qwen 2."""
    qk_layernorm: Annotated[Bool, replace(PART, before=False)] = False
    """Whether the queries and keys of each head are normalized before rope, as in Qwen 3."""
    window_size: Annotated[Int | None, replace(FUNCTION, flops=True, before=None)] = Field(default=None, gt=0)
    """Number of keys that a token sees at most, its own included, as sliding_window of Mistral, and 1 more than the
    first of Megatron-LM's --window-size; by default all."""
    num_experts: Annotated[Int | None, replace(SIZE, before=None)] = Field(default=None, gt=1)
    """Experts of a layer, each an MLP, of which a router chooses some for every token; by default there is one MLP."""
    moe_ffn_hidden_size: Annotated[Int, replace(SIZE, before=ANY)] = Field(gt=0, default_factory=_as("ffn_hidden_size"))
    """Width of one expert; by default ffn_hidden_size."""
    first_k_dense_replace: Annotated[Int, replace(SIZE, before=0)] = Field(default=0, ge=0)
    """So many layers at the front have one MLP of ffn_hidden_size instead of experts, as in DeepSeek-V3."""
    moe_layer_freq: Annotated[Int, replace(SIZE, before=1)] = Field(default=1, gt=0)
    """Of the layers behind them, counted from 0 over all, those that this divides have experts: 1 for all."""
    moe_shared_expert_intermediate_size: Annotated[Int | None, replace(SIZE, before=None)] = Field(default=None, gt=0)
    """Width of the experts that serve every token, together; by default there are none."""
    moe_router_topk: Annotated[Int, replace(FUNCTION, flops=True, before=2)] = Field(default=2, gt=0)
    """Experts that compute for one token."""
    moe_router_score_function: Annotated[Literal["softmax", "sigmoid"], replace(FUNCTION, before="softmax")] = "softmax"
    """Scores of the experts: softmax, over those chosen for a token, or sigmoid, divided by the sum of those chosen."""
    moe_router_pre_softmax: Annotated[Bool, replace(FUNCTION, before=False)] = False
    """Whether the softmax is over all experts, before some are chosen: a token's weights then sum to less than 1."""
    moe_router_num_groups: Annotated[Int | None, replace(FUNCTION, before=None)] = Field(default=None, gt=1)
    """Groups of neighbouring experts; those of a token are chosen from its best moe_router_group_topk groups."""
    moe_router_group_topk: Annotated[Int | None, replace(FUNCTION, before=None)] = Field(default=None, gt=0)
    """Groups of one token. A group is as good as its two best experts together, as in DeepSeek-V3."""
    moe_router_topk_scaling_factor: Annotated[Float, replace(FUNCTION, before=1.0)] = Field(default=1.0, gt=0)
    """Factor of the weights with which a token's experts are summed up."""
    moe_router_enable_expert_bias: Annotated[Bool, replace(PART, parameters=False, before=False)] = False
    """Whether experts are chosen by their scores and a bias, which after each step moves up for those below the mean
    load and down for the others (Wang et al. 2024, arXiv:2408.15664)."""
    moe_router_bias_update_rate: Annotated[Float, NONE] = Field(default=1e-3, ge=0)
    """By how much the bias moves in a step."""
    moe_expert_capacity_factor: Annotated[Float | None, NONE] = Field(default=None, gt=0)
    """In training an expert takes at most this times a micro-batch's tokens x moe_router_topk / num_experts, rounded
    up, and adds 0 to others. By default it takes all; evaluations always do."""
    moe_token_drop_policy: Annotated[Literal["probs", "position"], NONE] = "probs"  # noqa: S105  no password
    """Which of its tokens an expert drops: those with the smallest weights, or the last positions of all samples."""
    moe_router_load_balancing_type: Annotated[Literal["none", "aux_loss", "seq_aux_loss"], NONE] = "none"
    """Loss that evens out the load of the experts: aux_loss over a micro batch (Fedus et al. 2021, arXiv:2101.03961) or
    seq_aux_loss over each sequence (DeepSeek-V3, arXiv:2412.19437)."""
    moe_aux_loss_coeff: Annotated[Float, NONE] = Field(default=0.01, gt=0)
    """Factor of the auxiliary loss."""
    moe_z_loss_coeff: Annotated[Float | None, NONE] = Field(default=None, gt=0)
    """Factor of the mean square of the log of the sum of exponentials of the router's logits (Zoph et al. 2022,
    arXiv:2202.08906, equation 5); by default that loss is not added."""
    untie_embeddings_and_output_weights: Annotated[Bool, PART] = False
    """Whether the output layer has weights of its own instead of the embedding's."""
    parallel_residual: Annotated[Bool, FUNCTION] = False
    """x + attention(norm1(x)) + mlp(norm2(x)) as in GPT-NeoX, instead of one after the other."""
    embedding_layernorm: Annotated[Bool, PART] = False
    """Whether the embedding's output is normalized."""
    hidden_dropout: Annotated[Float, NONE] = Field(default=0.1, ge=0, lt=1)
    """Probability of dropout on the residual branches."""
    attention_dropout: Annotated[Float, NONE] = Field(default=0.1, ge=0, lt=1)
    """Probability of dropout on the attention weights."""
    init_method: Annotated[Literal["normal", "small_init", "wang_init"], NONE] = "normal"
    """Standard deviation of starting weights: normal (init_method_std), small_init (sqrt(2 / (5 hidden_size))) or
    wang_init (2 / (num_layers sqrt(hidden_size)))."""
    init_method_std: Annotated[Float, NONE] = Field(default=0.02, gt=0)
    """Standard deviation of `normal` starting weights."""
    output_layer_init_method: Annotated[OutputInit, NONE] = "scaled_normal"
    """The same for the last layer of attention and MLP; scaled_normal is init_method_std / sqrt(2 num_layers)."""
    apply_query_key_layer_scaling: Annotated[Bool, NONE] = False
    """Scale Q K^T by 1 / layer number and undo it in the softmax, against fp16 overflow."""
    attention_softmax_in_fp32: Annotated[Bool, NONE] = True
    """Compute the softmax of fp16 or bf16 attention scores in fp32."""
    make_vocab_size_divisible_by: Annotated[Int, NONE] = Field(default=128, gt=0)
    """The vocabulary is padded to a multiple of this times the tensor-parallel size."""

    @property
    def layers_with_experts(self) -> tuple[bool, ...]:
        """Whether each layer has experts."""
        first, every = self.first_k_dense_replace, self.moe_layer_freq
        return tuple(
            self.num_experts is not None and layer >= first and layer % every == 0 for layer in range(self.num_layers)
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


def dense_and_frequency(has_experts: Sequence[bool]) -> tuple[int, int] | None:
    """Return first_k_dense_replace and moe_layer_freq of a model whose layers have experts or not; None if none fit."""
    if not any(has_experts):
        return None
    for first in (0, list(has_experts).index(True)):
        for every in range(1, len(has_experts) + 1):
            if all(has == (layer >= first and layer % every == 0) for layer, has in enumerate(has_experts)):
                return first, every
    return None


def _consequences() -> dict[str, Consequences]:
    """Return the consequences of every key."""
    fields = ModelSection.model_fields.items()
    told = {name: found for name, field in fields for found in field.metadata if isinstance(found, Consequences)}
    if silent := [f"model.{name}" for name, _ in fields if name not in told]:
        msg = f"{', '.join(silent)}: declare the key as Annotated[..., Consequences(...)]"
        raise TypeError(msg)
    return told


CONSEQUENCES = _consequences()
"""Key of the section -> what depends on it; checkpoints, refusals and documents are derived from it."""
