"""Numbers of all ranks, one row for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from torch import Tensor


def rank_rows(own: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return the vectors [n] of all ranks of the group, [ranks, n], on their device; collective.

    As a sum with zeros: not every library gathers int64.
    """
    rows = own.new_zeros(dist.get_world_size(group), len(own))
    rows[dist.get_rank(group)] = own
    dist.all_reduce(rows, group=group)
    return rows
