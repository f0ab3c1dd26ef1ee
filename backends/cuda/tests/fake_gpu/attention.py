"""torch's scaled_dot_product_attention, which asks the device which kernel it has: here it has the allowed one."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812


def install() -> None:
    """Dispatch to the kernel that `sdpa_kernel` allows; its meta function gives shapes and strides."""
    F.scaled_dot_product_attention = attention


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Call flash, efficient or cuDNN's operator; the backend never allows plain matmuls."""
    allowed, aten = torch.backends.cuda, torch.ops.aten
    if attn_mask is None and allowed.flash_sdp_enabled():
        call = aten._scaled_dot_product_flash_attention
        return call(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    bias = None
    if attn_mask is not None:  # torch makes a bias of it: scaled_dot_product_attention, convert_boolean_attn_mask
        bias = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), float("-inf"))
        bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if allowed.mem_efficient_sdp_enabled():
        call = aten._scaled_dot_product_efficient_attention
        return call(query, key, value, bias, query.requires_grad, dropout_p, is_causal, scale=scale)[0]
    if allowed.cudnn_sdp_enabled():
        call = aten._scaled_dot_product_cudnn_attention
        return call(query, key, value, bias, query.requires_grad, dropout_p, is_causal, False, scale=scale)[0]
    raise RuntimeError("No available kernel. Aborting execution.")
