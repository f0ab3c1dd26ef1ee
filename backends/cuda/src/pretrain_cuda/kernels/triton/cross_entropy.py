"""Vocabulary-parallel cross entropy in Triton: the forward pass reads the logits once, the backward pass replaces them.

Nothing of their size is stored beside them: fp32 lies in registers only, and the softmax is computed again from its
maximum and its denominator, not from the logarithm of both: rounding that would be the error of a weight near one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from pretrain.reference.cross_entropy import own_slice

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from pretrain.plugins.requests import CrossEntropyRequest

BLOCK, WARPS = 4096, 8
"""Columns that a program has at a time: 16 logits in a thread, in fp16 or bf16 two loads of 16 bytes. Not tuned."""

LEAST = tl.constexpr(-3.4028234663852886e38)
"""The least finite fp32; in its place -inf - -inf would be nan."""


class CrossEntropy:
    """A `CrossEntropyFn`: always computes in fp32; fp16 or bf16 would save no memory traffic."""

    def __init__(self, request: CrossEntropyRequest) -> None:
        self.vocab_size = request.vocab_size

    def __call__(self, logits: Tensor, target: Tensor, group: ProcessGroup | None = None) -> Tensor:
        """Return fp32 [s, b]; the backward pass overwrites the logits [s, b, padded_vocab_size / t]."""
        loss: Tensor = _CrossEntropy.apply(logits, target, self.vocab_size, group)  # type: ignore[no-untyped-call]
        return loss


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, vocab_size: int, group: ProcessGroup | None) -> Tensor:
        part = own_slice(logits.shape[-1], vocab_size, group)
        rows = logits.detach().reshape(-1, part.columns).contiguous()  # autograd refuses to save a view of the logits
        column = target.reshape(-1) - part.first
        found = torch.empty(3, rows.shape[0], dtype=torch.float32, device=rows.device)
        if rows.numel():
            _forward[rows.shape[0],](
                rows,
                column,
                found,
                columns=part.columns,
                entries=part.entries,
                is_whole=group is None,
                block=BLOCK,
                num_warps=WARPS,
            )
        maximum, total, loss = found if group is None else _over_ranks(found[0], found[1], found[2], group=group)
        ctx.save_for_backward(rows, column, maximum, total)
        ctx.part, ctx.shape = part, logits.shape
        return loss.view(target.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, column, maximum, total = ctx.saved_tensors
        if rows.numel():
            _backward[rows.shape[0], triton.cdiv(ctx.part.columns, BLOCK)](
                rows,
                column,
                maximum,
                total,
                grads[0].reshape(-1).contiguous(),
                columns=ctx.part.columns,
                entries=ctx.part.entries,
                block=BLOCK,
                num_warps=WARPS,
            )
        torch.autograd.graph.increment_version(rows)  # autograd does not see Triton write; a second pass is an error
        return rows.view(ctx.shape), None, None, None


def _over_ranks(maximum: Tensor, total: Tensor, picked: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """Return maximum, sum of exponentials and loss over the columns of all ranks, from those of this one."""
    whole = maximum.clone()
    dist.all_reduce(whole, op=dist.ReduceOp.MAX, group=group)
    sums = torch.stack((total * (maximum - whole).exp(), picked))
    dist.all_reduce(sums, group=group)
    return whole, sums[0], sums[0].log() + (whole - sums[1])


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _forward(
    logits: tl.tensor,
    target: tl.tensor,
    found: tl.tensor,
    columns: tl.constexpr,
    entries: tl.constexpr,
    is_whole: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Write a row's maximum, sum of exponentials and loss; the target's logit instead if there are other ranks."""
    row, rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    logits += row * columns
    maximum, total = tl.full([], LEAST, tl.float32), 0.0  # Triton 3.7 to 3.9 misinterpret constexpr - tensor
    for first in range(0, entries, block):
        column = first + tl.arange(0, block)
        # Loaded up to `columns`: triton loads 16 bytes at a time where that is a multiple of 16, as entries rarely are.
        x = tl.load(logits + column, mask=column < columns, other=0.0).to(tl.float32)
        x = tl.where(column < entries, x, float("-inf"))
        higher = tl.maximum(maximum, tl.max(x, axis=0))
        total = total * tl.exp(maximum - higher) + tl.sum(tl.exp(x - higher), axis=0)
        maximum = higher
    picked_column = tl.load(target + row)
    is_here = (picked_column >= 0) & (picked_column < entries)
    picked = tl.load(logits + picked_column, mask=is_here, other=0.0).to(tl.float32)
    found += row
    tl.store(found, maximum)
    tl.store(found + rows, total)
    tl.store(found + 2 * rows, tl.log(total) + (maximum - picked) if is_whole else picked)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _backward(
    logits: tl.tensor,
    target: tl.tensor,
    maximum: tl.tensor,
    total: tl.tensor,
    grad_loss: tl.tensor,
    columns: tl.constexpr,
    entries: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Replace logits by grad_loss * (softmax - 1 at the target), and padding by zero."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * columns
    column = tl.program_id(1) * block + tl.arange(0, block)
    x = tl.load(logits + column, mask=column < columns, other=0.0).to(tl.float32)
    share = tl.exp(x - tl.load(maximum + row)) / tl.load(total + row)
    share = tl.where(column == tl.load(target + row), share - 1.0, share)
    grad = tl.where(column < entries, share * tl.load(grad_loss + row), 0.0)
    tl.store(logits + column, grad.to(logits.dtype.element_ty), mask=column < columns)
