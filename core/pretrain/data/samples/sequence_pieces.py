"""What each context-parallel rank has of the sequences: two pieces, and the documents that they belong to.

A sequence is cut into 2 c pieces, of which rank r of c has numbers r and 2 c - 1 - r: under a causal mask all ranks
then compute as much (Llama 3, arXiv:2407.21783, section 3.3.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

Batch = dict[str, "Tensor | None"]


@dataclass(frozen=True, slots=True)
class ContextRank:
    """Place of a rank among those that share a sequence."""

    rank: int = 0
    size: int = 1

    @property
    def pieces(self) -> tuple[int, ...]:
        """The numbers of this rank's pieces, of 2 size; one rank alone has everything as one piece."""
        return (0,) if self.size == 1 else (self.rank, 2 * self.size - 1 - self.rank)

    def own(self, x: Tensor, dim: int) -> Tensor:
        """Return this rank's part of a tensor with all positions along `dim`."""
        if self.size == 1:
            return x
        cut = x.chunk(2 * self.size, dim)
        return torch.cat([cut[piece] for piece in self.pieces], dim)

    def positions(self, length: int) -> Tensor:
        """Return the positions that this rank has of a sequence, int64 [s / c], in its order."""
        return self.own(torch.arange(length), 0)

    def part(self, batch: Batch, ends: Tensor | None) -> Batch:
        """Return this rank's part of a micro-batch: of its [b, s] tensors, and the documents of each piece.

        `ends` are those of documents (`document_ends`), None where they are not kept apart. The part has `num_tokens`
        too, the sum of the whole `loss_mask`, fp32 scalar.
        """
        mask, tokens = batch["loss_mask"], batch["tokens"]
        if mask is None or tokens is None:
            msg = "a micro-batch has tokens and a loss mask"
            raise ValueError(msg)
        own = {name: None if x is None else self.own(x, 1) for name, x in batch.items()}
        documents = None if ends is None else self._documents(ends, *tokens.shape)
        return {**own, "num_tokens": mask.sum(), "documents": documents}

    def _documents(self, ends: Tensor, batch: int, length: int) -> Tensor:
        """Return the ends of queries and keys for each piece, int32 [pieces, 2, documents + 1]; see `Documents`."""
        size = length // len(self.pieces) // self.size
        cut = [_piece(ends.numpy(), batch, length, piece * size, (piece + 1) * size) for piece in self.pieces]
        most = max(each.shape[1] for each in cut)
        # A piece with fewer documents gets empty ones.
        return torch.from_numpy(np.stack([np.pad(each, ((0, 0), (0, most - each.shape[1])), "edge") for each in cut]))


ALONE = ContextRank()


def document_ends(tokens: Tensor, eod: int) -> Tensor:
    """Return where the documents of [b, s] tokens end, int32 [documents + 1] from 0 to b s, sample after sample.

    An end-of-document token belongs to the document that it ends, as in megatron-core's GPTDataset.
    """
    is_end = tokens.numpy() == eod
    is_end[:, -1] = True
    return torch.from_numpy(np.append(0, np.flatnonzero(is_end) + 1).astype(np.int32))


def _piece(ends: npt.NDArray[Any], batch: int, length: int, begin: int, end: int) -> npt.NDArray[np.int32]:
    """Return the ends of queries `begin` to `end` and of their keys in all samples, int32 [2, documents + 1].

    The keys of every sample begin where the first document of any sample does that reaches into the piece.
    """
    row, place = (ends[1:] - 1) // length, (ends[1:] - 1) % length + 1
    before = np.array([place[(row == sample) & (place <= begin)].max(initial=0) for sample in range(batch)])
    first = int(before.min())
    queries = row * (end - begin) + np.clip(place - begin, 0, end - begin)
    keys = row * (end - first) + np.clip(place - first, 0, end - first)
    both = np.stack((np.append(0, queries), np.append(0, keys)))
    is_new = np.append(True, (np.diff(both) != 0).any(axis=0))
    return both[:, is_new].astype(np.int32)
