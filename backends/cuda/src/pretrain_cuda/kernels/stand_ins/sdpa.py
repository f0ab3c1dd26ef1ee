"""torch's attention and Transformer Engine's: what their kernels keep, and the workspaces of their backward passes.

Sizes of torch's are those of ATen/native/transformers/cuda/attention.cu, attention_backward.cu and
mem_eff_attention/kernel_backward.h at torch 2.13. What cuDNN allocates while it computes, it says at run time alone:
assumed are the sums of flash attention, fp32 gradients of the query and a statistic of its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias
from torch.nn.attention import SDPBackend

from pretrain.plugins.stand_in import stand_in
from pretrain_cuda.kernels.stand_ins.flash_generations import log_sums, workspace_2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest
    from pretrain.plugins.signatures import AttentionFn
    from pretrain.plugins.stand_in import Empty

    Function = Callable[..., Tensor]
    Kept = Sequence[Any]

ROWS = 32
"""Rows to which efficient's statistic is rounded up (kAlignLSE)."""

IN_REGISTERS = 128
"""Largest head for which efficient's gradients of key and value stay in registers; half precision, from Ampere on."""


def function(request: AttentionRequest, kernel: SDPBackend, multiprocessors: int) -> Function:
    """Return what takes the place of F.scaled_dot_product_attention under one kernel; tensors are [b, n, s, d].

    Args:
        request: describes the attention.
        kernel: FLASH_ATTENTION, CUDNN_ATTENTION or EFFICIENT_ATTENTION.
        multiprocessors: of the device, for the deterministic sums of flash.
    """
    if kernel is SDPBackend.FLASH_ATTENTION:
        return _flash(multiprocessors if request.deterministic else 0)
    known = _efficient() if kernel is SDPBackend.EFFICIENT_ATTENTION else stand_in(_compute_cudnn, _gradients_cudnn)

    def call(q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor | None = None, **settings: object) -> Tensor:
        del settings
        return known(q, k, v, None if attn_mask is None else _bias(attn_mask, q, k))

    return call


def transformer_engine() -> AttentionFn:
    """Return the stand-in of DotProductAttention: cuDNN's, or flash-attn's, which keeps as much."""

    def compute(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, training: bool = True
    ) -> tuple[Tensor, Kept]:
        del mask, training
        context, kept = _compute_cudnn(*(x.permute(1, 2, 0, 3) for x in (query, key, value)))
        return context.permute(2, 0, 1, 3).flatten(2), (query, key, value, *kept[3:])

    def gradients(kept: Kept, _: Tensor, empty: Empty) -> list[Tensor | None]:
        found = empty[:]
        workspace = _sums(kept[0].permute(1, 2, 0, 3))
        del workspace
        return found

    return stand_in(compute, gradients)


def _flash(multiprocessors: int) -> Function:
    def compute(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Kept]:
        out = torch.empty_like(q)
        seeds = q.new_empty(2, dtype=torch.int64), q.new_empty((), dtype=torch.int64)
        return out, (q, k, v, out, log_sums(q.transpose(1, 2)), *seeds)

    def gradients(kept: Kept, _: Tensor, __: Empty) -> list[Tensor]:
        q, k, v = kept[:3]
        found = [torch.empty_like(x) for x in (q, k, v)]
        workspace = workspace_2(q.transpose(1, 2), k.transpose(1, 2), multiprocessors)
        del workspace
        return found

    def call(q: Tensor, k: Tensor, v: Tensor, **settings: object) -> Tensor:
        del settings
        size, more = q.shape[-1], -q.shape[-1] % 8
        padded = (F.pad(x, [0, more]) if more else x for x in (q, k, v))
        return stand_in(compute, gradients)(*padded)[..., :size]

    return call


def _compute_cudnn(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Kept]:
    out = torch.empty_like(q)
    seeds = [q.new_empty((), dtype=torch.int64) for _ in range(2)]
    return out, (q, k, v, out, log_sums(q.transpose(1, 2)), *seeds, bias)


def _gradients_cudnn(kept: Kept, grad: Tensor, _: Empty) -> list[Tensor | None]:
    q, k, v, out = kept[:4]
    found = [torch.empty_like(x) for x in (q, k, v)]
    placed = grad if grad.stride() == out.stride() else torch.empty_like(out)
    workspace = _sums(q)
    del placed, workspace
    return [*found, None]


def _sums(q: Tensor) -> list[Tensor]:
    batch, heads, length, size = q.shape
    return [q.new_empty(batch, heads, length, width, dtype=torch.float32) for width in (1, size)]


def _efficient() -> Function:
    def compute(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Kept]:
        batch, heads, length, _ = q.shape
        out = q.new_empty(batch, length, heads, v.shape[-1]).transpose(1, 2)
        statistic = q.new_empty(batch, heads, -(-length // ROWS) * ROWS, dtype=torch.float32)
        seeds = [q.new_empty((), dtype=torch.int64) for _ in range(2)]
        return out, (q, k, v, bias, out, statistic, *seeds)

    def gradients(kept: Kept, grad: Tensor, _: Empty) -> list[Tensor | None]:
        q, k, v = kept[:3]
        grad = grad.transpose(1, 2).contiguous()
        found = [x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x in (q, k, v)]
        workspace = _efficient_workspace(q, k)
        del workspace
        return [*found, None]

    return stand_in(compute, gradients)


def _efficient_workspace(q: Tensor, k: Tensor) -> list[Tensor]:
    """Return efficient's sums in fp32: of the query's gradient, and of the others' where they leave the registers.

    fp32 tensors are their own sums of key and value, but their products of gradient and output are made whole.
    """
    batch, heads, length, size = q.shape
    blocks = 128 if 64 < size <= IN_REGISTERS else 64
    wide = -(-size // 64) * 64
    entries = -(-length // blocks) * blocks * wide
    if q.dtype != torch.float32 and size > IN_REGISTERS:
        splits = max(1, min(-(-k.shape[2] // 64), 200 // (batch * heads)))
        entries += 2 * splits * 64 * wide
    products = size if q.dtype == torch.float32 else 1
    return [q.new_empty(batch, heads, rows, dtype=torch.float32) for rows in (entries, length * products)]


def _bias(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Return a mask as torch passes it on: in the query's dtype, rows padded to a multiple of 8, for all heads."""
    rows = q.new_empty(mask.shape)
    padded = F.pad(rows, [0, -rows.shape[-1] % 8])[..., : rows.shape[-1]] if rows.shape[-1] % 8 else rows
    return padded.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
