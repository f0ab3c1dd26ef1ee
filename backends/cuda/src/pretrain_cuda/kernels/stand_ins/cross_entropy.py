"""Vocabulary-parallel cross entropy: what Triton's kernel keeps, and what goes between the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pretrain.plugins.stand_in import stand_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

    from pretrain.plugins.signatures import CrossEntropyFn
    from pretrain.plugins.stand_in import Empty


def triton() -> CrossEntropyFn:
    """Return the stand-in of `triton.cross_entropy.CrossEntropy`: the gradient takes the place of the logits."""
    return stand_in(_compute, _gradients)


def _compute(logits: Tensor, target: Tensor, group: ProcessGroup | None = None) -> tuple[Tensor, Sequence[Tensor]]:
    rows = logits.detach().reshape(-1, logits.shape[-1]).contiguous()
    column = target.reshape(-1) - 0
    found = torch.empty(3, rows.shape[0], dtype=torch.float32, device=rows.device)
    maximum, total, loss = found if group is None else _over_ranks(found, group)
    return loss.view(target.shape), (rows, column, maximum, total)


def _over_ranks(found: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    maximum = found[0].clone()
    dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=group)
    sums = torch.empty_like(found[:2])
    dist.all_reduce(sums, group=group)
    return maximum, sums[0], torch.empty_like(maximum)


def _gradients(kept: Sequence[Tensor], grad: Tensor, _: Empty) -> tuple[Tensor, None, None]:
    rows = kept[0]
    grad.reshape(-1).contiguous()
    return rows.view(*grad.shape, rows.shape[-1]), None, None
