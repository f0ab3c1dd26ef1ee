"""Flags of rope and how it is scaled; YaRN is a kind of positions there."""

# Sources: GPTModel, RotaryEmbedding and YarnRotaryEmbedding in megatron/core/models; `_apply_yarn_config_from_args` in
# megatron/training/argument_utils.py.

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.model.rope import mscale_of
from pretrain.tools.migrate.to_megatron.flags import NOTHING, Answer, given, when

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe
    from pretrain.tools.migrate.to_megatron.flags import Function

_LENGTH = 8192
"""Positions that the model knew before, which Megatron-LM has as a constant."""

OF_LLAMA3 = (
    "rope is scaled there with the numbers of Llama 3.1: low_freq_factor 1, high_freq_factor 4 and 8192 positions"
)


def _kind(recipe: Recipe) -> str:
    """Return how rope is scaled; empty where it is not."""
    model = recipe.model
    return model.rope_scaling_type if model.position_embedding_type == "rope" and model.use_rope_scaling else ""


def _positions(recipe: Recipe) -> Answer:
    kind = "yarn" if _kind(recipe) == "yarn" else recipe.model.position_embedding_type
    return when(kind != "learned_absolute", "position_embedding_type", kind)


def _rotary_percent(recipe: Recipe) -> Answer:
    model = recipe.model
    if model.position_embedding_type != "rope" or model.rotary_percent == 1.0:
        return NOTHING
    if _kind(recipe) == "yarn":
        return Answer(change="yarn rotates whole heads: it is another model")
    return Answer((given("rotary_percent", model.rotary_percent),))


def _type(recipe: Recipe) -> Answer:
    is_dynamic = _kind(recipe) == "dynamic"
    return Answer(change="rope is not scaled there: it is another model") if is_dynamic else NOTHING


def _factor(recipe: Recipe) -> Answer:
    factor = recipe.model.rope_scaling_factor
    match _kind(recipe):
        case "llama3":
            return when(factor != 8.0, "rope_scaling_factor", factor)
        case "yarn":
            return when(factor != 1.0, "rotary_scaling_factor", factor)
        case "linear" if factor.is_integer():
            return when(factor != 1.0, "rotary_seq_len_interpolation_factor", factor)
        case "linear":
            return Answer(change="--rotary-seq-len-interpolation-factor takes whole numbers: it is another model")
    return NOTHING


def _original_length(recipe: Recipe) -> Answer:
    length = recipe.model.original_max_position_embeddings
    match _kind(recipe):
        case "llama3" if length != _LENGTH:
            return Answer(change=OF_LLAMA3)
        case "yarn":
            return when(length != 4096, "yarn_original_max_position_embeddings", length)
    return NOTHING


def _attention_factor(recipe: Recipe) -> Answer:
    """Return the --mscale with which, and with --mscale-all-dim 0, the factor of cos and sin is the recipe's."""
    factor, times = recipe.model.yarn_attention_factor, recipe.model.rope_scaling_factor
    if _kind(recipe) != "yarn" or factor is None or (times == 1 and factor == 1):
        return NOTHING
    if times == 1:
        return Answer(change="cos and sin have no factor where rotary_scaling_factor is 1: it is another model")
    return Answer((given("mscale", mscale_of(times, factor)),))


FUNCTIONS: Mapping[str, Function] = {
    "model.position_embedding_type": _positions,
    "model.rotary_percent": _rotary_percent,
    "model.use_rope_scaling": lambda recipe: when(_kind(recipe) == "llama3", "use_rope_scaling"),
    "model.rope_scaling_type": _type,
    "model.rope_scaling_factor": _factor,
    "model.original_max_position_embeddings": _original_length,
    "model.yarn_attention_factor": _attention_factor,
}
