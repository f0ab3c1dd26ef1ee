"""Division of the model's activations among tensor-parallel ranks, beside that of sequences.

Division of a linear's output by heads, features or columns, as megatron-core's tensor_parallel/layers.py has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.tools.align.model_place import Place

SAME, PARTIAL = "same", "partial"
"""Every rank has it whole, or has a term of the sum that it is."""

SPLIT_HEADS, SPLIT_LAST, SPLIT_GATED = "heads", "last", "gated"
"""Ranks have neighbouring parts: of dimension 2, of the last one, or of both halves of the last one."""

_ROW_PARALLEL = ("linear_proj", "linear_fc2")


def division(place: Place, operation: str, name: str, ranks: int, is_gated: bool) -> str:
    """Return how a tensor is divided among the tensor-parallel ranks.

    Args:
        place: of the module.
        operation: whose call gave it; "" for the module itself.
        name: "output", or the input whose gradient it is.
        ranks: their number.
        is_gated: linear_fc1 has the rows of a gate and of an up projection.
    """
    if ranks == 1 or operation in {"", "norm", "bias_dropout_add"}:
        return SAME
    if operation == "linear":
        return _of_linear(place.module.rpartition(".")[2], name, is_gated)
    if operation == "activation" and name != "output" and is_gated:
        return SPLIT_GATED
    if operation == "rotary" or (operation == "attention" and name != "output"):
        return SPLIT_HEADS
    return SAME if operation == "cross_entropy" and name == "output" else SPLIT_LAST


def _of_linear(module: str, name: str, is_gated: bool) -> str:
    if module in _ROW_PARALLEL:
        return PARTIAL if name == "output" else SPLIT_LAST
    if name != "output":
        return SAME
    return SPLIT_GATED if module == "linear_fc1" and is_gated else SPLIT_LAST
