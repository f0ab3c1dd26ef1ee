"""Sizes of a model's linears on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.recipe.recipe import Recipe


def linear_shapes(recipe: Recipe) -> list[tuple[int, int]]:
    """Return inputs and outputs of a rank's linears, each pair once: into the MLP first, then out, QKV, projection.

    The MLP is that of layers without experts, and that of shared experts.
    """
    model, tensor = recipe.model, recipe.parallel.tensor_model_parallel_size
    hidden, gates = model.hidden_size, 2 if model.activation == "swiglu" else 1
    dense = None if all(model.layers_with_experts) else model.ffn_hidden_size
    widths = [width // tensor for width in (dense, model.moe_shared_expert_intermediate_size) if width]
    heads = model.num_attention_heads * model.head_size // tensor
    groups = model.num_query_groups * model.head_size // tensor
    mlp = [shape for width in widths for shape in ((hidden, gates * width), (width, hidden))]
    return list(dict.fromkeys([*mlp, (hidden, heads + 2 * groups), (heads, hidden)]))
