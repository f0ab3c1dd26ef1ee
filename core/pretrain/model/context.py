"""Attention under context parallelism, around any kernel: each rank has its queries, and gathers keys and values.

A piece of queries attends to the keys up to its own end, which is the attention operation with fewer queries than keys.
So no kernel has to return the log-sums that ring attention needs. Under recomputation of the attention the gathered
keys and values are not kept, but gathered again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

from pretrain.data.samples.sequence_pieces import ContextRank

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.signatures import AttentionFn, Documents


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedDocuments:
    """Documents of a micro-batch, which megatron-core hands on to every layer as its `packed_seq_params`.

    It looks at the members below `pieces`; with any format but "thd" it does not pack the samples itself.
    """

    pieces: tuple[Documents, ...]
    max_seqlen_q: int
    max_seqlen_kv: int
    qkv_format: ClassVar[str] = "sbhd"
    cp_group: ClassVar[None] = None


def context_rank() -> ContextRank:
    """Return this rank's place among those that share a sequence."""
    rank, size = parallel_state.get_context_parallel_rank, parallel_state.get_context_parallel_world_size
    return ContextRank(rank(), max(1, size()))  # 0: no groups were made


class ContextAttention:
    """Attention of one rank's pieces of the sequences."""

    def __init__(self, kernel: AttentionFn) -> None:
        self.kernel, self.context = kernel, context_rank()
        self.group = parallel_state.get_context_parallel_group()

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, documents: tuple[Documents, ...] | None, *, training: bool
    ) -> Tensor:
        """Return [s / c, b, n * d] for query [s / c, b, n, d], key and value [s / c, b, g, d].

        `documents` are those of each piece.
        """
        both = torch.stack((key, value), dim=1)  # one collective
        keys, values = self._in_order(gather_from_sequence_parallel_region(both, group=self.group)).unbind(dim=1)
        pieces = zip(self.context.pieces, query.chunk(2), documents or (None, None), strict=True)
        contexts = []
        for piece, rows, mask in pieces:
            end = (piece + 1) * rows.shape[0]
            begin = 0 if mask is None else end - mask.key_ends_on_host[-1] // rows.shape[1]
            contexts.append(self.kernel(rows, keys[begin:end], values[begin:end], mask, training=training))
        return torch.cat(contexts)

    def _in_order(self, gathered: Tensor) -> Tensor:
        """Return [s, ...] by position, of the ranks' parts one after the other."""
        halves = gathered.view(self.context.size, 2, -1, *gathered.shape[1:])
        first, last = halves.unbind(dim=1)
        return torch.cat((first, last.flip(0))).flatten(0, 1)
