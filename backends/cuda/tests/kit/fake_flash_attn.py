"""flash-attn's functions as its sources document them, computed with torch; they check their arguments.

The order of the arguments, their defaults and the layouts are those of commit 0251105a, in
flash_attn/flash_attn_interface.py, hopper/flash_attn_interface.py and flash_attn/cute/interface.py.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

CALLS = []
"""The arguments of every call, by name; the tensors as (shape, stride)."""


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """flash-attn 2: the result is laid out as the query is (torch::empty_like in flash_api.cpp)."""
    assert (softcap, alibi_slopes, return_attn_probs) == (0.0, None, False)
    _record(q, k, v, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal, deterministic=deterministic)
    return torch.empty_like(q).copy_(_attend(q, k, v, softmax_scale, causal, dropout_p, window_size))


def flash_attn_3_func(
    q,
    k,
    v,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    """flash-attn 3."""
    _record(q, k, v, softmax_scale=softmax_scale, causal=causal, deterministic=deterministic)
    return torch.empty_like(q).copy_(_attend(q, k, v, softmax_scale, causal, window=window_size))


def flash_attn_4_func(
    q,
    k,
    v,
    qv=None,
    gather_kv_indices=None,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    learnable_sink=None,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    score_mod=None,
    score_mod_bwd=None,
    mask_mod=None,
    aux_tensors=None,
    aux_scalars=None,
    block_sparse_tensors=None,
    block_sparse_tensors_bwd=None,
    return_lse=False,
):
    """flash-attn 4: the result is contiguous, and the rows' log-sum-exp, or None, comes with it."""
    _record(q, k, v, softmax_scale=softmax_scale, causal=causal, deterministic=deterministic)
    return _attend(q, k, v, softmax_scale, causal).contiguous(), None


def _record(q, k, v, **settings):
    for x in (q, k, v):
        assert x.stride(-1) == 1, "Input tensor must have contiguous last dimension"
    assert q.shape[2] % k.shape[2] == 0, "Number of heads in key/value must divide number of heads in query"
    assert q.dtype == k.dtype == v.dtype
    tensors = {name: (tuple(x.shape), x.stride()) for name, x in (("q", q), ("k", k), ("v", v))}
    CALLS.append(tensors | settings)


def _attend(q, k, v, scale, causal, dropout=0.0, window=(-1, -1)):
    """q [b, sq, hq, d], k and v [b, sk, hk, d]; the scores stay in fp32, and a row without a key is zero.

    A window is the number of keys before a query's own, and of those after it, which a causal mask sets to 0.
    """
    queries, keys, shared = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(shared, dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * scale
    if causal:
        after = torch.ones(queries, keys, dtype=torch.bool, device=q.device).triu(keys - queries + 1)
        if window[0] >= 0:
            after |= torch.ones_like(after).tril(keys - queries - window[0] - 1)
        scores = scores.masked_fill(after, torch.finfo(torch.float32).min)
    weights = torch.softmax(scores, dim=-1)
    if causal:
        weights = weights.masked_fill(after, 0)
    return torch.einsum("bhqk,bkhd->bqhd", F.dropout(weights, dropout), v.float()).to(q.dtype)
