"""Transformer layers of which torch.compile makes what lies between products, attention and communication.

What is compiled is plain torch: norm, rotary, activation, and bias-dropout-add with the norm that follows it. All else
stays as it was negotiated and is called from compiled code as it is: a collective is issued where it was, and kernels
that write in place, or that torch cannot look into, are not looked into.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

from pretrain.model.attention import Attention, CoreAttention
from pretrain.model.layer import ParallelLayer, SerialLayer

if TYPE_CHECKING:
    from torch import nn

BACKEND = "inductor"
"""Of torch.compile."""

OPAQUE = {
    ColumnParallelLinear: "forward",
    RowParallelLinear: "forward",
    CoreAttention: "forward",
    Attention: "_checkpointed_attention_forward",
    ParallelLayer: "_reduce",
}
"""Class -> its method that is called from compiled code and not looked into."""


def compile_layers(chunk: nn.Module) -> None:
    """Compile the layers of a model chunk at their first call; names of modules and parameters stay."""
    for module in chunk.get_submodule("decoder").modules():
        kind: Any = type(module)
        if kind in OPAQUE:
            module.__class__ = _opaque(kind)
        if isinstance(module, SerialLayer):
            module.compile(backend=BACKEND)


@cache
def _opaque(kind: Any) -> type[nn.Module]:
    """Return the class with its method kept out: one for all layers, or each layer would be compiled on its own."""
    method = OPAQUE[kind]
    disabled = torch.compiler.disable(getattr(kind, method))  # type: ignore[no-untyped-call]
    return type(kind.__name__, (kind,), {method: disabled})
