"""Slice of the vocabulary that a tensor-parallel rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class Slice:
    """Contiguous columns of the padded vocabulary: equal parts in the order of the ranks.

    Attributes:
        first: vocabulary entry of this rank's first column.
        columns: number of columns, padding included.
        entries: number of columns without padding; may be 0 or all.
    """

    first: int
    columns: int
    entries: int

    def find(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the column of every target, 0 for targets of other ranks, and True for those of this rank."""
        column = target - self.first
        is_here = (column >= 0) & (column < self.columns)
        return column * is_here, is_here


def own_slice(columns: int, vocab_size: int, group: ProcessGroup | None) -> Slice:
    """Return the slice of this rank of the tensor-parallel group."""
    first = group.rank() * columns if group is not None else 0
    return Slice(first, columns, min(max(vocab_size - first, 0), columns))
