"""Operators with the documented semantics of torch_npu's, in plain torch on the CPU, differentiable.

They stand in where torch_npu is not installed. Every call must fit the schemas of all releases, and what the
documentation of the operator asks for; a call that does not raises. They say nothing of CANN's own numerics.
"""

from __future__ import annotations

import inspect
from itertools import pairwise

import torch
from torch.nn import functional as F  # noqa: N812

from ascend_kit import schemas

calls = []
"""Operator and arguments by name, of all calls."""


def call(name, *arguments, **options):
    """Replace `pretrain_ascend.kernels.operators.call`; what a function below has not is at its default."""
    given = [schemas.bind(release, name, arguments, options) for release in schemas.RELEASES][-1]
    calls.append((name, given))
    known = inspect.signature(globals()[name]).parameters
    assert options.keys() <= known.keys()
    return globals()[name](**{key: value for key, value in given.items() if key in known})


def npu_fusion_attention(
    query,
    key,
    value,
    head_num,
    input_layout,
    atten_mask,
    scale,
    keep_prob,
    pre_tockens,
    next_tockens,
    sparse_mode,
    actual_seq_qlen,
    actual_seq_kvlen,
):
    assert all(x.is_contiguous() and x.dim() == 3 and x.dtype == query.dtype for x in (query, key, value))
    assert 0 < keep_prob <= 1
    assert sparse_mode == 4 or (pre_tockens, next_tockens) == (2**31 - 1, 2**31 - 1)
    given = (head_num, scale, keep_prob, sparse_mode, atten_mask, pre_tockens, next_tockens)
    if input_layout == "SBH":
        assert actual_seq_qlen is actual_seq_kvlen is None
        size = query.shape[-1] // head_num
        parts = (x.unflatten(-1, (-1, size)).permute(1, 2, 0, 3) for x in (query, key, value))
        context = _attended(*parts, *given).permute(2, 0, 1, 3).flatten(2)
    else:
        assert input_layout == "TND"
        assert sparse_mode == 3 or (sparse_mode == 4 and pre_tockens + next_tockens > 0)
        ends = actual_seq_qlen, actual_seq_kvlen, actual_seq_kvlen
        lengths = [[end - begin for begin, end in pairwise((0, *each))] for each in ends]
        assert 1 <= len(lengths[0]) <= 1024
        assert all(0 < queries <= keys for queries, keys in zip(*lengths[:2], strict=True))
        parts = (x.transpose(0, 1)[None].split(rows, 2) for x, rows in zip((query, key, value), lengths, strict=True))
        contexts = [_attended(*document, *given) for document in zip(*parts, strict=True)]
        context = torch.cat(contexts, 2)[0].transpose(0, 1)
    return context.to(query.dtype).contiguous(), None, None, None, 0, 0, 0


def _attended(q, k, v, head_num, scale, keep_prob, sparse_mode, atten_mask, pre_tockens, next_tockens):
    q, k, v = (x.float() for x in (q, k, v))
    assert q.shape[1] == head_num
    assert q.shape[-1] <= 768
    k, v = (x.repeat_interleave(head_num // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * scale
    b, n, sq, sk = scores.shape
    masked = torch.zeros((), dtype=torch.bool)
    if sparse_mode in {2, 3, 4}:
        # By numpy: the conformance kit would count torch.equal as a host wait of the kernel.
        assert (atten_mask.numpy() == torch.ones(2048, 2048, dtype=torch.bool).triu(1).numpy()).all()
        distance = torch.arange(sk) - torch.arange(sq)[:, None] - (0 if sparse_mode == 2 else sk - sq)
        masked = distance > 0
        if sparse_mode == 4:
            masked = (distance > next_tockens) | (distance < -pre_tockens)
    elif sparse_mode == 1:
        assert atten_mask.shape in {(b, n, sq, sk), (b, 1, sq, sk), (1, 1, sq, sk), (sq, sk)}
        assert atten_mask.dtype == torch.bool
        assert atten_mask.is_contiguous()
        masked = atten_mask
    else:
        assert sparse_mode == 0
        assert atten_mask is None
    # nan in a fully masked row, because the operator's result is undocumented
    weights = scores.masked_fill(masked, float("-inf")).softmax(-1)
    return F.dropout(weights, 1 - keep_prob) @ v


def npu_scaled_masked_softmax(x, mask, scale, fixed_triu_mask):
    assert not fixed_triu_mask
    assert mask.dtype == torch.bool
    assert all(32 <= size <= 4096 and size % 32 == 0 for size in x.shape[-2:])
    assert x.is_contiguous()
    assert mask.is_contiguous()
    assert mask.shape[-2:] == x.shape[-2:]
    return (x.float() * scale).masked_fill(mask, -10000.0).softmax(-1).to(x.dtype)


def npu_rms_norm(input, gamma, epsilon):  # noqa: A002  the schema's name
    x = input.float()
    rstd = (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return (x * rstd * gamma.float()).to(input.dtype), rstd


def npu_rotary_mul(input, r1, r2, rotary_mode):  # noqa: A002
    assert rotary_mode == "half"
    assert input.dtype == r1.dtype == r2.dtype
    assert input.is_contiguous()
    first, second = input.chunk(2, -1)
    return input * r1 + torch.cat((-second, first), -1) * r2


def npu_gelu(input, approximate):  # noqa: A002
    return F.gelu(input, approximate=approximate)


def npu_swiglu(input, dim):  # noqa: A002
    assert input.is_contiguous()
    first, second = input.chunk(2, dim)
    return F.silu(first) * second


def npu_cross_entropy_loss(input, target, reduction):  # noqa: A002
    assert reduction == "none"
    assert input.is_contiguous()
    assert (input.dim(), target.dim(), target.dtype) == (2, 1, torch.int64)
    return F.cross_entropy(input, target, reduction="none"), None, None, None


def npu_grouped_matmul(x, weight, group_list, split_item, group_type, group_list_type):
    (x,), (weight,) = x, weight
    assert (split_item, group_list_type, group_list.dtype) == (3, 1, torch.int64)
    assert group_type in {0, 2}
    assert x.dtype == weight.dtype
    with torch.utils._python_dispatch._disable_current_modes():  # a device reads the counts itself
        counts = group_list.tolist()
        if group_type == 0:
            return [torch.cat([a @ b for a, b in zip(x.split(counts), weight, strict=True)])]
        assert x.stride(0) == 1
        pairs = zip(x.split(counts, 1), weight.split(counts), strict=True)
        return [torch.stack([a @ b if a.shape[1] else torch.full_like(a @ b, torch.nan) for a, b in pairs])]


def npu_moe_token_permute(tokens, indices):
    assert indices.dtype == torch.int32
    assert tokens.is_contiguous()
    order = indices.flatten().argsort(stable=True)
    return tokens[order // indices.shape[1]], order.argsort().int()


def npu_moe_token_unpermute(permuted_tokens, sorted_indices, probs):
    assert sorted_indices.dtype == torch.int32
    of_token = permuted_tokens[sorted_indices.long()].view(*probs.shape, -1)
    return (of_token * probs.unsqueeze(-1)).sum(1)


status = torch.zeros(8, dtype=torch.int32)
"""Float status of the one device."""


def npu_get_float_status(input):  # noqa: A002
    assert input.numel() == 8
    return status.clone()


def npu_clear_float_status(input):  # noqa: A002
    status.zero_()
    return input
