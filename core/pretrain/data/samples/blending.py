"""Which part of a blend Megatron takes each sample from, and how many samples of each part must be prepared for that.

megatron-core 0.16.1 rounds each part's share of the samples up, prepares `SURPLUS` more of it, and mixes the sum of the
rounded shares by the exact weights (datasets/blended_megatron_dataset_builder.py, _get_size_per_split_per_dataset). Of
few samples a heavy part may have to give more than it has: Megatron stops there and asks for a larger surplus.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from megatron.core.datasets import helpers
from megatron.core.datasets.utils import normalize

from pretrain.data.token_files.reading import TokenFile, split_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

SURPLUS = 0.005
"""megatron-core's default: so many more samples than its weight asks for are prepared of each part of a blend."""


def blending_indices(weights: Sequence[float], samples: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]:
    """Return for each sample its part, and how many of that part came before: two arrays [samples].

    Args:
        weights: of the parts; their sum is 1.
        samples: how many.
    """
    parts, numbers = np.zeros(samples, np.int16), np.zeros(samples, np.int64)
    helpers.build_blending_indices(parts, numbers, list(weights), len(weights), samples, False)
    return parts, numbers


def blend_surplus(
    parts: Sequence[tuple[str, float]],
    split_matrix: Sequence[tuple[float, float] | None],
    needed: Sequence[int],
    seq_length: int,
) -> float:
    """Return megatron-core's surplus, or the one that it takes where a part would run dry and Megatron would stop.

    A surplus moves the end of the epochs, and with it the order of the samples. So it is raised only if it must.

    Args:
        parts: path and weight of every token file.
        split_matrix: begin and end of each split as a share of the sequences.
        needed: samples that are read from each split.
        seq_length: tokens of a sample.

    Raises:
        DataError: a token file is missing or damaged.
    """
    weights: list[float] = normalize([weight for _, weight in parts])

    def needed_surplus(bounds: tuple[float, float], samples: int) -> float:
        shares = [math.ceil(samples * weight) for weight in weights]
        most = [math.floor(sum(shares) * weight) + 1 for weight in weights]  # who is behind gives the next sample
        scarce = [number for number, share in enumerate(shares) if most[number] > _prepared(share)]
        has = {n: _available(TokenFile.open(parts[n][0]), bounds, _prepared(shares[n]), seq_length) for n in scarce}
        if all(most[number] <= has[number] for number in scarce):
            return SURPLUS
        taken: list[int] = np.bincount(blending_indices(weights, sum(shares))[0], minlength=len(parts)).tolist()
        return max([SURPLUS, *(taken[n] / shares[n] - 1 for n in scarce if taken[n] > has[n])])

    pairs = zip(split_matrix, needed, strict=True)
    return max((needed_surplus(bounds, samples) for bounds, samples in pairs if bounds and samples), default=SURPLUS)


def _prepared(share: int) -> int:
    return math.ceil(share * (1 + SURPLUS))


def _available(file: TokenFile, bounds: tuple[float, float], prepared: int, seq_length: int) -> int:
    """Return the samples of the whole epochs that it takes to prepare so many."""
    tokens = file.tokens_in(split_range(bounds, file.lengths.size))
    epochs = -(-(prepared * seq_length + 1) // tokens)
    return (epochs * tokens - 1) // seq_length
