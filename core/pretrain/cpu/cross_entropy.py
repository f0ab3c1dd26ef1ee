"""Vocabulary-parallel cross entropy by blocks of rows that stay in the cache; the gradient replaces the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pretrain.reference.accumulation import accumulation_dtype
from pretrain.reference.cross_entropy import own_slice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from torch.distributed import ProcessGroup

    from pretrain.plugins.requests import CrossEntropyRequest
    from pretrain.reference.cross_entropy import Slice

BLOCK = 1 << 20
"""Elements of one block: 4 MiB in fp32, which leaves room in the last-level cache."""


class BlockedCrossEntropy:
    """A `CrossEntropyFn`.

    fp32 logits become the softmax in place. fp16 and bf16 logits are kept, and their fp32 softmax is recomputed in the
    backward pass: that is cheaper than storing it, and the gradient is rounded only once.
    """

    def __init__(self, request: CrossEntropyRequest) -> None:
        self.vocab_size = request.vocab_size

    def __call__(self, logits: Tensor, target: Tensor, group: ProcessGroup | None = None) -> Tensor:
        """Return fp32 [s, b]; logits [s, b, padded_vocab_size / t] are overwritten."""
        loss: Tensor = _BlockedCrossEntropy.apply(logits, target, self.vocab_size, group)  # type: ignore[no-untyped-call]
        return loss


class _BlockedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, vocab_size: int, group: ProcessGroup | None) -> Tensor:
        part = own_slice(logits.shape[-1], vocab_size, group)
        column, is_here = part.find(target.reshape(-1, 1))
        rows = logits.detach().reshape(-1, part.columns)  # autograd cannot save a view of the logits
        dtype = accumulation_dtype(logits.dtype)
        picked = rows.gather(1, column).to(dtype).masked_fill_(~is_here, 0)
        rows[:, part.entries :] = 0  # is already the gradient of the padding
        maximum = torch.full_like(picked, -torch.inf)
        total = torch.zeros_like(picked)
        for block, maxima, totals in _blocks(part, rows, maximum, total):
            entries = block[:, : part.entries].to(dtype)  # the block itself if it has the dtype
            torch.amax(entries, dim=1, keepdim=True, out=maxima)
            torch.softmax(entries, dim=1, out=entries)
            # The largest weight is exp(0) / sum, which gives the sum of exponentials without another pass.
            torch.amax(entries, dim=1, keepdim=True, out=totals).reciprocal_()
        whole_maximum, whole_total, picked = _over_ranks(maximum, total, picked, group)
        # Factor from the softmax over this rank's columns to that over all columns.
        share = (maximum - whole_maximum).exp_().mul_(total).div_(whole_total)
        ctx.save_for_backward(rows, column, is_here, share)
        ctx.part, ctx.shape = part, logits.shape
        return whole_total.log_().add_(whole_maximum).sub_(picked).view(target.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, column, is_here, share = ctx.saved_tensors
        part: Slice = ctx.part
        grad_loss = grads[0].reshape(-1, 1).to(share.dtype)
        factor, at_target = grad_loss * share, (-grad_loss).masked_fill_(~is_here, 0)
        for block, factors, columns, targets in _blocks(part, rows, factor, column, at_target):
            own = block[:, : part.entries]
            entries = own.to(share.dtype)
            if entries is not own:
                torch.softmax(entries, dim=1, out=entries)
            entries.mul_(factors).scatter_add_(1, columns, targets)
            if entries is not own:
                own.copy_(entries)
        return rows.view(ctx.shape), None, None, None


def _blocks(part: Slice, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    if part.entries == 0:
        return iter(())  # this rank holds padding only
    size = max(1, BLOCK // part.columns)
    return zip(*(torch.split(tensor, size) for tensor in tensors), strict=True)


def _over_ranks(
    maximum: Tensor, total: Tensor, picked: Tensor, group: ProcessGroup | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return maximum, sum of exponentials and the target's logit over all columns, from those of this rank."""
    if group is None:
        return maximum, total.clone(), picked
    whole = maximum.clone()
    dist.all_reduce(whole, op=dist.ReduceOp.MAX, group=group)
    sums = torch.stack((total * (maximum - whole).exp(), picked))
    dist.all_reduce(sums, group=group)
    return whole, sums[0], sums[1]
