"""Part of an attention that the oracle computes: all of it, or sequences, heads and queries from all over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pretrain.tools.doctor.kernels.room import ORACLE_ELEMENTS

if TYPE_CHECKING:
    from torch import Tensor

LEAST_QUERIES = 3
"""One at the beginning, one in the middle, one at the end."""

EARLY = 16
"""Queries that are judged together: the first one sees a single key, and its gradient is zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Numbers of the compared sequences, head groups and queries, each int64 and ascending.

    Attributes:
        sequences: of the micro batch.
        groups: of the heads; one head each where the heads share nothing.
        queries: of the sequence.
        is_whole: whether nothing is left out.
    """

    sequences: Tensor
    groups: Tensor
    queries: Tensor
    is_whole: bool

    @classmethod
    def of(cls, batch: int, groups: int, shared: int, queries: int, keys: int) -> Compared:
        """Return everything while its scores are at most `ORACLE_ELEMENTS`, else a part of about so many.

        Args:
            batch: number of sequences.
            groups: of head groups.
            shared: heads of a group.
            queries: of a sequence.
            keys: scores of one query and head.
        """
        is_whole = batch * groups * shared * queries * keys <= ORACLE_ELEMENTS
        if is_whole:
            everything = (torch.arange(count) for count in (batch, groups, queries))
            return cls(**dict(zip(("sequences", "groups", "queries"), everything, strict=True)), is_whole=True)
        some, few = spread(batch), spread(groups)
        room = ORACLE_ELEMENTS // (len(some) * len(few) * shared * keys)
        return cls(sequences=some, groups=few, queries=runs(queries, room), is_whole=False)

    def masked(self, queries: int, keys: int) -> Tensor:
        """Return the causal mask of the compared queries, bool [1, 1, compared, keys], True = masked."""
        return (torch.arange(keys) > self.queries[:, None] + keys - queries)[None, None]


def spread(count: int) -> Tensor:
    """Return the first, a middle and the last of so many; odd and even ones are among them where there are two."""
    middle = count // 2 | count % 2
    return torch.tensor(sorted({0, min(middle, count - 1), count - 1}))


def runs(count: int, room: int) -> Tensor:
    """Return about `room` numbers below `count`: neighbours at the beginning, in the middle and at the end.

    The beginning is number 1: query 0 sees one key alone, so that nothing can be said of its gradient.
    """
    length = max(LEAST_QUERIES, room) // 3
    if 3 * length >= count:
        return torch.arange(count)
    starts = 1, (count - length) // 2, count - length
    return torch.tensor(sorted({start + each for start in starts for each in range(length)}))


def octaves(positions: Tensor) -> tuple[Tensor, ...]:
    """Return the places of the positions below 16, from 16 to 31, from 32 to 63, and so on; empty ones are left out.

    Entries of one group are of like size: a late query's weights are small, since they are divided among many keys, and
    an error in them would be lost beside the first queries'.
    """
    number = positions.clamp(min=EARLY - 1).double().log2().floor()
    return tuple((number == each).nonzero().flatten() for each in sorted(set(number.tolist())))


def outer(*places: Tensor) -> tuple[Tensor, ...]:
    """Return an index that takes these places of neighbouring dimensions, each with all of the others."""
    count = len(places)
    return tuple(place.view([-1 if at == number else 1 for at in range(count)]) for number, place in enumerate(places))
