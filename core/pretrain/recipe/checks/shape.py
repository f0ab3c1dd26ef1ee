"""Sizes that must divide one another: heads, layers, sequence, and the parallel sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.layout import StagesError
from pretrain.recipe.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe.recipe import Recipe


def model_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield sizes of the model that do not fit each other."""
    model = recipe.model
    given = model.model_fields_set
    if "kv_channels" not in given and model.hidden_size % model.num_attention_heads:
        yield Problem(
            "model.num_attention_heads",
            f"{model.num_attention_heads} does not divide model.hidden_size {model.hidden_size}.",
        )
    if model.num_attention_heads % model.num_query_groups:
        yield Problem(
            "model.num_query_groups",
            f"{model.num_query_groups} does not divide model.num_attention_heads {model.num_attention_heads}.",
        )
    if model.max_position_embeddings < model.seq_length:
        yield Problem(
            "model.max_position_embeddings",
            f"{model.max_position_embeddings} is less than model.seq_length {model.seq_length}.",
        )
    if model.position_embedding_type == "rope" and (model.rotary_size < 2 or model.rotary_size % 2):
        yield Problem(
            "model.rotary_percent",
            f"{model.rotary_percent} of head size {model.head_size} is {model.rotary_size}; rope needs an even number.",
        )
    if model.rope_high_freq_factor <= model.rope_low_freq_factor:
        yield Problem(
            "model.rope_high_freq_factor",
            f"{model.rope_high_freq_factor} is not more than model.rope_low_freq_factor {model.rope_low_freq_factor}.",
        )
    if model.apply_query_key_layer_scaling and not model.attention_softmax_in_fp32:
        yield Problem("model.attention_softmax_in_fp32", "must be true with model.apply_query_key_layer_scaling.")


def indivisible_by_tensor_size(recipe: Recipe, size: int) -> list[str]:
    """Return the keys of section model that `size` tensor-parallel ranks cannot share."""
    model = recipe.model
    keys = ["num_attention_heads", "hidden_size"]
    # Where these two are not given they follow from the others, which are then the ones to report.
    keys += [key for key in ("num_query_groups", "ffn_hidden_size") if key in model.model_fields_set]
    if recipe.parallel.sequence_parallel:
        keys.append("seq_length")
    indivisible = [key for key in keys if getattr(model, key) % size]
    if not indivisible and model.ffn_hidden_size % size:
        indivisible = ["ffn_hidden_size"]
    return indivisible


def tensor_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield sizes that the tensor-parallel ranks cannot share."""
    size = recipe.parallel.tensor_model_parallel_size
    for key in indivisible_by_tensor_size(recipe, size):
        why = ", along which sequence_parallel splits" if key == "seq_length" else ""
        yield Problem(
            "parallel.tensor_model_parallel_size",
            f"{size} does not divide model.{key} {getattr(recipe.model, key)}{why}.",
        )


def stage_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield problems of the division into stages and of recomputation in their chunks."""
    try:
        layers = recipe.layers_of_chunks
    except StagesError as error:
        yield Problem(error.path, error.text)
        return
    if recipe.recompute.granularity == "full":
        yield from _recomputed(recipe, layers)


def _recomputed(recipe: Recipe, layers: tuple[int, ...]) -> Iterator[Problem]:
    """Yield a problem if num_layers does not divide a chunk: megatron-core's uniform method would exceed it."""
    path, recomputed = "recompute.num_layers", recipe.recompute.num_layers
    odd = next((number for number in layers if number % recomputed), None)
    if recomputed > max(layers):
        yield Problem(path, f"{recomputed} is more than the {max(layers)} layers of one stage.")
    elif recipe.recompute.method == "uniform" and odd is not None:
        yield Problem(
            path, f"{recomputed} does not divide the {odd} layers of a stage; recompute.method: block takes any number."
        )
