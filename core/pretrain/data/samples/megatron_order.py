"""Megatron's order of the samples: its index arrays, its blends, and the check that a resumed run keeps it.

The arrays equal those of megatron-core 0.16.1 (GPTDataset._build_document_sample_shuffle_indices) bit for bit, without
its temporary copies. It shuffles all epochs together: beyond one epoch the order depends on the training's length.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from megatron.core.datasets import helpers
from megatron.core.datasets.utils import normalize

from pretrain.data.token_files.reading import TokenFile, split_range
from pretrain.errors import DataError
from pretrain.stores.stored_inputs import local_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from pretrain.recipe.sections.data import BlendPart, DataSection

# a last epoch is shuffled separately if a smaller share of it is read, so that none of its documents is read early
_WHOLE_EPOCH = 0.80


@dataclass(frozen=True, kw_only=True, slots=True)
class MegatronOrder:
    """The samples that are read from a split, over as many epochs as needed, and their order."""

    lengths: npt.NDArray[np.int32]  # tokens of every sequence of the file, [sequences]
    documents: range  # sequences of the split
    num_samples: int
    seq_length: int
    seed: int

    def arrays(self) -> Iterator[npt.NDArray[Any]]:
        """Yield document, sample and shuffle index one by one; each is freed as soon as possible."""
        tokens = int(self.lengths[self.documents.start : self.documents.stop].sum(dtype=np.int64))
        epochs = -(-(self.num_samples * self.seq_length + 1) // tokens)
        before_last = ((epochs - 1) * tokens - 1) // self.seq_length
        per_epoch = (tokens - 1) // self.seq_length
        is_apart = epochs > 1 and self.num_samples - before_last < int(_WHOLE_EPOCH * per_epoch)
        random = np.random.RandomState(self.seed)  # defines the order, as in megatron-core

        documents = self._documents(epochs, random, is_apart=is_apart)
        samples = helpers.build_sample_idx(self.lengths, documents, self.seq_length, epochs, tokens)
        yield documents
        del documents
        number = samples.shape[0] - 1
        yield samples
        del samples
        yield _shuffled(number, before_last if is_apart else number, random)

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


SURPLUS = 0.005  # megatron-core's default share of samples that are prepared of each part in excess of its weight


def blending_indices(weights: Sequence[float], samples: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]:
    """Return the part of each sample, and the number of earlier samples of that part, [samples]; weights sum to 1."""
    parts, numbers = np.zeros(samples, np.int16), np.zeros(samples, np.int64)
    helpers.build_blending_indices(parts, numbers, list(weights), len(weights), samples, False)
    return parts, numbers


def blend_surplus(data: DataSection, needed: Sequence[int], seq_length: int) -> float:
    """Return megatron-core's surplus, or a larger one if a part would be exhausted and Megatron would stop.

    Of each part megatron-core prepares its share rounded up, and `SURPLUS` more; then it mixes the sum of the rounded
    shares by the exact weights (BlendedMegatronDatasetBuilder._get_size_per_split_per_dataset), which may need more of
    a heavy part. A surplus moves the end of the epochs, and with it the order, so it is raised only if necessary.
    """

    def available(part: BlendPart, bounds: tuple[float, float], most: int) -> int:
        return _available(TokenFile.open(local_prefix(part.path)), bounds, most, seq_length)

    def needed_surplus(parts: Sequence[BlendPart], bounds: tuple[float, float], samples: int) -> float:
        weights: list[float] = normalize([part.weight for part in parts])
        shares = [math.ceil(samples * weight) for weight in weights]
        # the next sample is of the part furthest below its share
        most = [math.floor(sum(shares) * weight) + 1 for weight in weights]
        scarce = [number for number, share in enumerate(shares) if most[number] > _prepared(share)]
        has = {n: available(parts[n], bounds, _prepared(shares[n])) for n in scarce}
        if all(most[number] <= has[number] for number in scarce):
            return SURPLUS
        taken: list[int] = np.bincount(blending_indices(weights, sum(shares))[0], minlength=len(parts)).tolist()
        return max([SURPLUS, *(taken[n] / shares[n] - 1 for n in scarce if taken[n] > has[n])])

    splits = zip(data.splits, data.bounds, needed, strict=True)
    return max((needed_surplus(*split) for split in splits if split[2]), default=SURPLUS)


def _prepared(share: int) -> int:
    return math.ceil(share * (1 + SURPLUS))


def _available(file: TokenFile, bounds: tuple[float, float], prepared: int, seq_length: int) -> int:
    """Return the number of samples in the whole epochs that are needed for `prepared` samples."""
    tokens = file.tokens_in(split_range(bounds, file.lengths.size))
    epochs = -(-(prepared * seq_length + 1) // tokens)
    return (epochs * tokens - 1) // seq_length


_COMPARED = 4096  # number of compared entries of each index; different shuffles differ in them


def order_of(train: Any, samples: int) -> dict[str, Any]:
    """Return the number of samples of a training, and a digest of their order, for a checkpoint to hold."""
    digest = hashlib.blake2b(digest_size=16)
    for part in getattr(train, "datasets", [train]):
        for index in (part.document_index, part.shuffle_index):
            digest.update(len(index).to_bytes(8, "little") + index[:_COMPARED].tobytes())
    return {"samples": samples, "digest": digest.hexdigest()}


def require_same_order(saved: dict[str, Any], ours: dict[str, Any]) -> str:
    """Check that a resumed training reads no sample again before others; return a notice if its data has changed."""
    if saved["digest"] == ours["digest"]:
        return ""
    if saved["samples"] == ours["samples"]:
        return "data: other documents than the checkpoint's, or another order: some samples are read again, some never"
    msg = (
        f"this training reads {ours['samples']} samples, that of the checkpoint {saved['samples']} (train_iters, "
        "train_samples, global_batch_size): beyond one epoch data.index: megatron reshuffles them, and samples would "
        "repeat.\nRestore the length; or set data.index: native, whose order does not depend on it "
        "(samples of this epoch that were read already may be read again)."
    )
    raise DataError(msg)
