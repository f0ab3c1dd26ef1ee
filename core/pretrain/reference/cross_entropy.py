"""Vocabulary-parallel cross entropy, and the slice of the vocabulary that a tensor-parallel rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pretrain.reference.accumulation import accumulation_dtype

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from pretrain.plugins.requests import CrossEntropyRequest


@dataclass(frozen=True, slots=True)
class Slice:
    """Contiguous columns of the padded vocabulary: equal parts in the order of the ranks."""

    first: int  # vocabulary entry of this rank's first column
    columns: int  # padding included
    entries: int  # columns without padding; may be 0 or all

    def find(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the column of every target, 0 for targets of other ranks, and True for those of this rank."""
        column = target - self.first
        is_here = (column >= 0) & (column < self.columns)
        return column * is_here, is_here


def own_slice(columns: int, vocab_size: int, group: ProcessGroup | None) -> Slice:
    """Return the slice of this rank of the tensor-parallel group."""
    first = group.rank() * columns if group is not None else 0
    return Slice(first, columns, min(max(vocab_size - first, 0), columns))


class CrossEntropy:
    """A `CrossEntropyFn`: log(sum(exp(logits))) - logits[target], over the entries of the vocabulary."""

    def __init__(self, request: CrossEntropyRequest) -> None:
        self.vocab_size, self.in_fp32 = request.vocab_size, request.in_fp32

    def __call__(self, logits: Tensor, target: Tensor, group: ProcessGroup | None = None) -> Tensor:
        """Return fp32 [s, b]; logits [s, b, padded_vocab_size / t] are overwritten, unless converted to fp32 first."""
        loss: Tensor = _CrossEntropy.apply(logits, target, self.vocab_size, self.in_fp32, group)  # type: ignore[no-untyped-call]
        return loss


class _CrossEntropy(torch.autograd.Function):
    """Save the softmax, in place of the logits if their dtype is that of the computation."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, vocab_size: int, in_fp32: bool, group: ProcessGroup | None
    ) -> Tensor:
        part = own_slice(logits.shape[-1], vocab_size, group)
        column, is_here = part.find(target)
        x = logits.to(accumulation_dtype(logits.dtype)) if in_fp32 else logits
        x[..., part.entries :] = torch.finfo(x.dtype).min / 2  # not -inf: saturating chips would report an overflow
        maximum = x.amax(dim=-1, keepdim=True)
        if group is not None:
            dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=group)
        x.sub_(maximum)
        picked = x.gather(-1, column.unsqueeze(-1)).squeeze(-1).masked_fill(~is_here, 0)
        x.exp_()
        total = x.sum(dim=-1, dtype=accumulation_dtype(x.dtype))
        total, picked = _sum_over_ranks(total, picked, group)
        ctx.save_for_backward(x.div_(total.unsqueeze(-1)), column, is_here)
        ctx.dtype = logits.dtype
        return total.log() - picked

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad_loss,) = grads
        softmax, column, is_here = ctx.saved_tensors
        softmax.scatter_add_(-1, column.unsqueeze(-1), -is_here.unsqueeze(-1).to(softmax.dtype))
        return softmax.mul_(grad_loss.unsqueeze(-1)).to(ctx.dtype), None, None, None, None


def _sum_over_ranks(total: Tensor, picked: Tensor, group: ProcessGroup | None) -> tuple[Tensor, Tensor]:
    if group is None:
        return total, picked
    both = torch.stack((total, picked.to(total.dtype)))
    dist.all_reduce(both, group=group)
    return both[0], both[1]
