"""Build Megatron's order of the samples as three arrays, without temporary copies.

The arrays equal those of megatron-core 0.16.1 (GPTDataset._build_document_sample_shuffle_indices) bit for bit.
megatron-core fills a matrix of 8-byte numbers for the documents of all epochs, copies it, and keeps all until the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from megatron.core.datasets import helpers

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

_WHOLE_EPOCH = 0.80
"""A last epoch is shuffled separately if a smaller share of it is read, so that none of its documents comes early."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MegatronOrder:
    """The samples that are read from a split, and their order.

    Attributes:
        lengths: tokens of every sequence of the file, [sequences] int32.
        documents: sequences of the split.
        num_samples: number of samples that are read, over as many epochs as needed.
        seq_length: tokens of a sample.
        seed: of the shuffles.
    """

    lengths: npt.NDArray[np.int32]
    documents: range
    num_samples: int
    seq_length: int
    seed: int

    def arrays(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield the arrays one by one with the name of their file; each is freed as soon as possible."""
        tokens = int(self.lengths[self.documents.start : self.documents.stop].sum(dtype=np.int64))
        epochs = -(-(self.num_samples * self.seq_length + 1) // tokens)
        before_last = ((epochs - 1) * tokens - 1) // self.seq_length
        per_epoch = (tokens - 1) // self.seq_length
        is_apart = epochs > 1 and self.num_samples - before_last < int(_WHOLE_EPOCH * per_epoch)
        random = np.random.RandomState(self.seed)  # defines the order, as in megatron-core

        documents = self._documents(epochs, random, is_apart=is_apart)
        samples = helpers.build_sample_idx(self.lengths, documents, self.seq_length, epochs, tokens)
        yield "document_index", documents
        del documents
        number = samples.shape[0] - 1
        yield "sample_index", samples
        del samples
        yield "shuffle_index", _shuffled(number, before_last if is_apart else number, random)

    def _documents(self, epochs: int, random: np.random.RandomState, *, is_apart: bool) -> npt.NDArray[np.int32]:
        each = len(self.documents)
        index = np.empty(epochs * each, np.int32)
        index.reshape(epochs, each)[:] = np.arange(self.documents.start, self.documents.stop, dtype=np.int32)
        first = (epochs - 1) * each if is_apart else index.size
        random.shuffle(index[:first])
        if is_apart:
            random.shuffle(index[first:])
        return index


def _shuffled(number: int, first: int, random: np.random.RandomState) -> npt.NDArray[Any]:
    """Return range(number) with its first `first` elements shuffled, and separately the others."""
    index = np.arange(number, dtype=np.uint32 if number < np.iinfo(np.uint32).max - 1 else np.int64)
    random.shuffle(index[:first])
    if first < number:
        random.shuffle(index[first:])
    return index
