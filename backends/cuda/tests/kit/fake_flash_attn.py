"""flash-attn's functions as its sources document them, computed with torch; they check their arguments.

The order of the arguments, their defaults and the layouts are those of commit 0251105a, in
flash_attn/flash_attn_interface.py, hopper/flash_attn_interface.py and flash_attn/cute/interface.py.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.nn import functional as F  # noqa: N812

CALLS = []
"""The arguments of every call, by name; the tensors as (shape, stride), ends as lists."""


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


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """flash-attn 2: a longest query of 1 is decoding, where every sequence has one."""
    assert (softcap, alibi_slopes, return_attn_probs, block_table) == (0.0, None, False, None)
    assert max_seqlen_q > 1 or q.shape[0] == cu_seqlens_q.numel() - 1
    ends = _ends(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    named = {"dropout_p": dropout_p, "softmax_scale": softmax_scale, "causal": causal, "deterministic": deterministic}
    _record(q, k, v, **ends, window_size=window_size, **named)
    context = _attend_each(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, dropout_p, window_size)
    return torch.empty_like(q).copy_(context)


def flash_attn_3_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    seqused_q=None,
    seqused_k=None,
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
    ends = _ends(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    named = {"softmax_scale": softmax_scale, "causal": causal, "deterministic": deterministic}
    _record(q, k, v, **ends, window_size=window_size, **named)
    context = _attend_each(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, 0.0, window_size)
    return torch.empty_like(q).copy_(context)


def flash_attn_4_varlen_func(
    q,
    k,
    v,
    qv=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    min_seqlen_k=None,
    seqused_q=None,
    seqused_k=None,
    gather_kv_indices=None,
    page_table=None,
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
    block_sparse_tensors=None,
    aux_tensors=None,
    aux_scalars=None,
    return_lse=False,
    scheduler_metadata=None,
    seqlen_k_per_split=None,
    disable_scheduler_metadata=False,
):
    """flash-attn 4: the log-sum-exp comes with the result."""
    assert window_size == (None, None)
    ends = _ends(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    _record(q, k, v, **ends, softmax_scale=softmax_scale, causal=causal, deterministic=deterministic)
    context = _attend_each(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal)
    return context, context.new_zeros(q.shape[1], q.shape[0], dtype=torch.float32)


def _ends(queries, keys, longest_query, longest_key):
    for ends, longest in ((queries, longest_query), (keys, longest_key)):
        assert ends.dtype == torch.int32
        assert ends.is_contiguous()
        assert type(longest) is int
        assert max(end - begin for begin, end in pairwise(_read(ends))) <= longest
    return {"queries": _read(queries), "keys": _read(keys), "longest": (longest_query, longest_key)}


def _read(ends):
    """Return the numbers as a kernel reads them on the device: not by torch, of which the kit forbids it."""
    return ends.numpy().tolist()


def _attend_each(q, k, v, query_ends, key_ends, *settings):
    """Attend within each sequence; the tensors are [all of them, heads, d]."""
    parts = [torch.tensor_split(x, _read(ends)[1:-1]) for x, ends in ((q, query_ends), (k, key_ends), (v, key_ends))]
    contexts = [_attend(*(x.unsqueeze(0) for x in part), *settings)[0] for part in zip(*parts, strict=True)]
    return torch.cat(contexts)


def _record(q, k, v, **settings):
    for x in (q, k, v):
        assert x.stride(-1) == 1, "Input tensor must have contiguous last dimension"
    assert q.shape[-2] % k.shape[-2] == 0, "Number of heads in key/value must divide number of heads in query"
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
