"""Checks of `precision.fp8`: sizes of the linears on a rank, and what it cannot be combined with."""

from __future__ import annotations

from math import gcd, lcm
from typing import TYPE_CHECKING

from pretrain.recipe.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe.recipe import Recipe

MULTIPLES = {"tensorwise": 16, "rowwise": 16, "block": 128, "mxfp8": 32}
"""What every width of a linear is a multiple of: a group, so that ranks divide between groups, or the 16 bytes in which
matrix units read (torch's aten/src/ATen/native/cuda/ScaledBlas.cpp)."""


def fp8_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield what is wrong with a training in fp8."""
    kind = recipe.precision.fp8
    if kind is None:
        return
    if recipe.precision.dtype == "fp16":
        yield Problem(
            "precision.fp8",
            f"{kind} needs precision.dtype: bf16 or fp32: fp16's 5 bits of exponent cannot hold fp8 times its scale.",
        )
    model, parallel = recipe.model, recipe.parallel
    tensor, of_experts = parallel.tensor_model_parallel_size, parallel.expert_tensor_parallel_size
    dense = None if all(model.layers_with_experts) else model.ffn_hidden_size
    widths = {"hidden_size": (model.hidden_size, 1), "ffn_hidden_size": (dense, tensor)}
    if model.num_experts is not None:
        widths["moe_ffn_hidden_size"] = model.moe_ffn_hidden_size, of_experts
        widths["moe_shared_expert_intermediate_size"] = model.moe_shared_expert_intermediate_size, tensor
    multiple = MULTIPLES[kind]
    for key, (width, ranks) in widths.items():
        if width is not None and width % (multiple * ranks):
            yield Problem(f"model.{key}", _misfit(kind, multiple, str(width), ranks, _nearest(width, multiple * ranks)))
    heads, groups = model.num_attention_heads, model.num_query_groups
    steps = [multiple // gcd(multiple, count // tensor or 1) for count in (heads, heads + 2 * groups)]
    if model.head_size % lcm(*steps):
        given = f"{model.head_size}, for {heads} heads and {groups} query groups,"
        yield Problem(
            "model.kv_channels", _misfit(kind, multiple, given, tensor, _nearest(model.head_size, lcm(*steps)))
        )


def _nearest(width: int, multiple: int) -> int:
    return max(1, round(width / multiple)) * multiple


def _misfit(kind: str, multiple: int, given: str, ranks: int, nearest: int) -> str:
    shared = f" on each of {ranks} ranks" if ranks > 1 else ""
    return (
        f"{given} does not give multiples of {multiple}{shared}, which precision.fp8: {kind} needs. Nearest: {nearest}."
    )
