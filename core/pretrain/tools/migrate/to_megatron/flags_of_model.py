"""Flags of the model, where several make one key.

core_transformer_config_from_args (megatron/training/argument_utils.py), MLP of megatron/core/transformer/mlp.py, and
validate_args (megatron/training/arguments.py) for its defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.to_megatron.answer import NOTHING, Answer
from pretrain.tools.migrate.to_megatron.flag_words import given

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe
    from pretrain.tools.migrate.to_megatron.answer import Function

_ATTENTION = {"flash": "flash", "softmax": "unfused"}


def activation(recipe: Recipe) -> Answer:
    """Return the flags of the activation: with biases it is by default the fused bias and GELU, which is gelu_tanh."""
    kind, has_bias = recipe.model.activation, recipe.model.add_bias_linear
    if kind == "swiglu":
        return Answer((given("swiglu"),))
    if kind == "gelu":
        return Answer((given("bias_gelu_fusion", False),))
    # without biases nothing is fused, and the unfused GELU of Megatron-LM is exact, but that of Transformer Engine
    return NOTHING if has_bias else Answer((given("use_te_activation_func"),))


def ffn_hidden_size(recipe: Recipe) -> Answer:
    """Return the width of the MLP, if it is another than the default."""
    model = recipe.model
    default = 8 * model.hidden_size // 3 // 64 * 64 if model.activation == "swiglu" else 4 * model.hidden_size
    return NOTHING if model.ffn_hidden_size == default else Answer((given("ffn_hidden_size", model.ffn_hidden_size),))


def kv_channels(recipe: Recipe) -> Answer:
    """Return the size of a head, if the heads do not share the width evenly."""
    model = recipe.model
    if model.kv_channels * model.num_attention_heads == model.hidden_size:
        return NOTHING
    return Answer((given("kv_channels", model.kv_channels),))


def num_query_groups(recipe: Recipe) -> Answer:
    """Return the key/value heads, with the switch without which they are not read."""
    groups = recipe.model.num_query_groups
    if groups == recipe.model.num_attention_heads:
        return NOTHING
    return Answer((given("group_query_attention"), given("num_query_groups", groups)))


def attention_softmax_in_fp32(recipe: Recipe) -> Answer:
    """Return the flag of the softmax's dtype; a fused one would compute in fp32."""
    if recipe.model.attention_softmax_in_fp32:
        return Answer((given("attention_softmax_in_fp32"),))
    return Answer((given("masked_softmax_fusion", False),))


def attention(recipe: Recipe) -> Answer:
    """Return the backend of attention."""
    kind = recipe.kernels.attention
    if kind == "auto":
        return NOTHING
    if kind not in _ATTENTION:
        return Answer(change="Transformer Engine chooses the kernel of attention")
    return Answer((given("attention_backend", _ATTENTION[kind]),))


FUNCTIONS: Mapping[str, Function] = {
    "model.activation": activation,
    "model.ffn_hidden_size": ffn_hidden_size,
    "model.kv_channels": kv_channels,
    "model.num_query_groups": num_query_groups,
    "model.attention_softmax_in_fp32": attention_softmax_in_fp32,
    "kernels.attention": attention,
}
"""By key."""
