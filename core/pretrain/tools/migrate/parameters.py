"""Parameters that the source's program would train, counted by its flags, beside those of the recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.report.flops import parameter_count
from pretrain.tools.migrate.megatron.experts import (
    has_experts,
    layers_with_experts,
    shared_width,
    width_of_expert,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from pretrain.recipe import Recipe
    from pretrain.tools.migrate.setting import Settings

_GATED = ("swiglu", "glu_activation", "quick_geglu", "geglu", "gelu_tanh")

_COUNTED = frozenset(("", "num_experts", *_GATED))
"""Settings of another model that the formula below counts; with others it would not hold."""

_OF_EXPERTS = {
    **dict.fromkeys(("expert_interval", "moe_expert_interval"), "1"),
    "moe_latent_size": "0",
    **dict.fromkeys(("moe_use_residual", "moe_shared_expert_gate", "shared_expert_gate"), "False"),
    "mlp_type": "standard",
}
"""Settings of experts with which it would not hold either, unless they have this value."""


def parameters_line(settings: Settings, recipe: Recipe, lost: Collection[str] = ()) -> str:
    """Return "The source trains N parameters, this recipe N."; empty where the source's flags do not tell it."""
    odd = (str(settings.value(name, idle)) != idle for name, idle in _OF_EXPERTS.items())
    if settings.program.dialect != "megatron" or not _COUNTED.issuperset(lost) or any(odd):
        return ""
    theirs = source_parameters(settings, settings.vocabulary or 0)
    if theirs is None:
        return ""
    ours = parameter_count(recipe.model, settings.vocabulary or 0)
    without = "" if settings.vocabulary else ", without those of the vocabulary"
    return f"The source trains {theirs:,} parameters, this recipe {ours:,}{without}."


def source_parameters(settings: Settings, vocabulary: int) -> int | None:
    """Return the parameters of the model of Megatron-LM's flags; None if they do not say its sizes."""
    hidden, heads = settings.value("hidden_size"), settings.value("num_attention_heads")
    layers = settings.value("num_layers", settings.value("encoder_num_layers"))
    if not hidden or not heads or not layers:
        return None
    unit = 1 if str(settings.value("normalization", "")).lower() == "rmsnorm" else 2
    count = vocabulary * hidden * (2 if settings.value("untie_embeddings_and_output_weights") else 1) + unit * hidden
    if _has_table(settings):
        count += settings.value("max_position_embeddings", 0) * hidden
    if settings.value("embed_layernorm"):
        count += 2 * hidden
    head = settings.value("kv_channels") or hidden // heads
    layer = 2 * unit * hidden + _attention(settings, hidden, heads, head)
    if settings.value("qk_layernorm"):
        layer += 2 * unit * head
    with_experts = layers_with_experts(settings) if has_experts(settings) else [True] * layers
    if with_experts is None:
        return None
    experts, dense = (
        sum(with_experts) * _mlps(settings, hidden),
        (layers - sum(with_experts)) * _dense(settings, hidden),
    )
    return int(count + layers * layer + experts + dense)


def _has_table(settings: Settings) -> bool:
    """Say whether positions have embeddings of their own."""
    kind = str(settings.value("position_embedding_type", "learned_absolute")).rpartition(".")[2]
    if settings.value("use_rotary_position_embeddings") or settings.value("add_position_embedding") is False:
        return False
    return kind in {"learned_absolute", "absolute", "learned"}


def _attention(settings: Settings, hidden: int, heads: int, head: int) -> int:
    groups = settings.value("num_key_value_heads") or heads
    if settings.value("group_query_attention") or "group_query_attention" not in settings.program.flags:
        groups = settings.value("num_query_groups") or groups
    query_key_value = head * (heads + 2 * groups)
    bias = settings.value("add_bias_linear", True)
    biases = query_key_value * bool(bias or settings.value("add_qkv_bias")) + hidden * bool(bias)
    return int(hidden * (query_key_value + heads * head) + biases)


def _width(settings: Settings, hidden: int) -> int:
    default = 8 * hidden // 3 // 64 * 64 if settings.value("swiglu") else 4 * hidden
    return int(settings.value("ffn_hidden_size") or default)


def _dense(settings: Settings, hidden: int) -> int:
    is_gated = any(settings.value(name) for name in _GATED)
    return _mlp(settings, hidden, _width(settings, hidden), is_gated=is_gated)


def _mlps(settings: Settings, hidden: int) -> int:
    """Return the parameters of a layer's MLP, or of all its experts and their router."""
    is_gated = any(settings.value(name) for name in _GATED)
    experts = settings.value("num_experts")
    experts = experts[-1] if isinstance(experts, list) and experts else experts
    if not experts or experts == 1:
        return _dense(settings, hidden)
    own, shared = width_of_expert(settings), shared_width(settings)
    count = experts * (_mlp(settings, hidden, int(own or _width(settings, hidden)), is_gated=is_gated) + hidden)
    together = 0 if shared is None else int(shared.value)
    return int(count + (_mlp(settings, hidden, together, is_gated=is_gated) if together else 0))


def _mlp(settings: Settings, hidden: int, width: int, *, is_gated: bool) -> int:
    inner = width * (2 if is_gated else 1)
    return int(hidden * (inner + width) + (inner + hidden) * bool(settings.value("add_bias_linear", True)))
