"""The layouts of npu_fusion_attention, all seen as samples of [1 or b, heads, tokens, head size]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_simulator.kernels.contract import require

if TYPE_CHECKING:
    from torch import Tensor

NAME = "npu_fusion_attention"
ORDERS = {"BSH": (0, 2, 1, 3), "SBH": (1, 2, 0, 3), "BSND": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}
"""Positions of batch, heads, tokens and head size, once H is heads times head size."""


def split(x: Tensor, layout: str, head_size: int) -> Tensor:
    """Return [b, n, s, d]; TND is one sample."""
    if layout == "TND":
        return x.transpose(0, 1)[None]
    require(layout in ORDERS, NAME, f"input_layout '{layout}'; only {', '.join(ORDERS)}, TND")
    if layout in {"BSH", "SBH"}:
        require(x.shape[-1] % head_size == 0, NAME, f"{x.shape[-1]} features for heads of {head_size}")
        x = x.unflatten(-1, (-1, head_size))
    return x.permute(ORDERS[layout])


def join(x: Tensor, layout: str) -> Tensor:
    """Return the inverse of `split`."""
    if layout == "TND":
        return x[0].transpose(0, 1).contiguous()
    order = ORDERS[layout]
    x = x.permute([order.index(axis) for axis in range(4)])
    return x.flatten(2) if layout in {"BSH", "SBH"} else x.contiguous()
