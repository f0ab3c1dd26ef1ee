"""Compile a layer's element-wise ops; matmuls, attention and collectives stay eager.

The compiled code is plain torch: norm, rotary, activation, and bias-dropout-add with the norm that follows it. All
other kernels stay as negotiated, and compiled code calls them without tracing them: collectives keep their position,
and kernels that write in place, or that torch cannot trace, work unchanged.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

from pretrain.model.layer import CoreAttention, ParallelLayer, SerialLayer, TrainingAttention

if TYPE_CHECKING:
    from torch import nn

BACKEND = "inductor"
OPAQUE = {
    ColumnParallelLinear: "forward",
    RowParallelLinear: "forward",
    CoreAttention: "forward",
    TrainingAttention: "_checkpointed_attention_forward",
    ParallelLayer: "_reduce",
}
"""Class -> its method that compiled code calls without tracing it."""


def compile_layers(chunk: nn.Module) -> None:
    """Compile the layers of a model chunk at their first call; names of modules and parameters do not change."""
    for module in chunk.get_submodule("decoder").modules():
        kind: Any = type(module)
        if kind in OPAQUE:
            module.__class__ = _opaque(kind)
        if isinstance(module, SerialLayer):
            module.compile(backend=BACKEND)


@cache
def _opaque(kind: Any) -> type[nn.Module]:
    """Return the class with its method untraced; it is cached, because each new class would be compiled again."""
    method = OPAQUE[kind]
    disabled = torch.compiler.disable(getattr(kind, method))  # type: ignore[no-untyped-call]
    return type(kind.__name__, (kind,), {method: disabled})
