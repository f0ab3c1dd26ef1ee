"""Transformer Engine's attention as its sources document it, computed with torch; it checks its arguments.

Names, defaults and masks are those of commit 0001d1b, in
transformer_engine/pytorch/attention/dot_product_attention/dot_product_attention.py.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F  # noqa: N812

MASKS = ("no_mask", "causal", "causal_bottom_right")
"""Values that it has, limited to the ones without a mask tensor or lengths of sequences."""


class DotProductAttention(torch.nn.Module):
    def __init__(
        self,
        num_attention_heads,
        kv_channels,
        num_gqa_groups=None,
        attention_dropout=0.0,
        qkv_format="sbhd",
        attn_mask_type="causal",
        window_size=None,
        bottom_right_diagonal=None,
        sequence_parallel=False,
        tp_size=1,
        get_rng_state_tracker=None,
        tp_group=None,
        layer_number=None,
        attention_type="self",
        cp_group=None,
        cp_global_ranks=None,
        cp_stream=None,
        cp_comm_type="p2p",
        softmax_scale=None,
        softmax_type="vanilla",
        return_max_logit=False,
        name=None,
    ):
        super().__init__()
        self.heads, self.size = num_attention_heads, kv_channels
        self.groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        assert self.heads % self.groups == 0
        assert (qkv_format, tp_size, window_size, softmax_type) == ("sbhd", 1, None, "vanilla")
        self.dropout, self.mask_type = attention_dropout, attn_mask_type
        self.scale = 1 / math.sqrt(kv_channels) if softmax_scale is None else softmax_scale
        self.calls = []

    def forward(
        self,
        query_layer=None,
        key_layer=None,
        value_layer=None,
        attention_mask=None,
        qkv_format=None,
        cu_seqlens_q=None,
        cu_seqlens_kv=None,
        cu_seqlens_q_padded=None,
        cu_seqlens_kv_padded=None,
        max_seqlen_q=None,
        max_seqlen_kv=None,
        attn_mask_type=None,
    ):
        mask_type = self.mask_type if attn_mask_type is None else attn_mask_type
        assert mask_type in MASKS
        assert attention_mask is None
        assert query_layer.shape[2:] == (self.heads, self.size)
        assert key_layer.shape == value_layer.shape
        assert key_layer.shape[2:] == (self.groups, self.size)
        self.calls.append(mask_type)
        q, k, v = (x.permute(1, 2, 0, 3).float() for x in (query_layer, key_layer, value_layer))
        k, v = (x.repeat_interleave(self.heads // self.groups, dim=1) for x in (k, v))
        scores = q @ k.transpose(2, 3) * self.scale
        if mask_type != "no_mask":
            diagonal = k.shape[2] - q.shape[2] if mask_type == "causal_bottom_right" else 0
            after = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(diagonal + 1)
            scores = scores.masked_fill(after, -torch.inf)
        weights = F.dropout(torch.softmax(scores, dim=-1), self.dropout, self.training)
        return (weights @ v).permute(2, 0, 1, 3).flatten(2).to(query_layer.dtype)
