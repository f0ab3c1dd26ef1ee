"""Order of the samples in Megatron's blends, and the number of samples to prepare of each part.

megatron-core 0.16.1 rounds each part's share of the samples up, prepares `SURPLUS` more of it, and mixes the sum of the
rounded shares by the exact weights (datasets/blended_megatron_dataset_builder.py, _get_size_per_split_per_dataset).
With few samples this may require more samples of a heavy part than are prepared: Megatron stops there and asks for a
larger surplus.
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
"""megatron-core's default share of samples that are prepared of each part in excess of its weight."""


def blending_indices(weights: Sequence[float], samples: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]:
    """Return the part of each sample, and the number of earlier samples of that part: two arrays [samples].

    Args:
        weights: of the parts; their sum is 1.
        samples: number of samples.
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
    """Return megatron-core's surplus, or a larger one if a part would be exhausted and Megatron would stop.

    A surplus moves the end of the epochs, and with it the order of the samples. So it is raised only if necessary.

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
        most = [
            math.floor(sum(shares) * weight) + 1 for weight in weights
        ]  # the next sample is of the part furthest below its share
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
    """Return the number of samples in the whole epochs that are needed for `prepared` samples."""
    tokens = file.tokens_in(split_range(bounds, file.lengths.size))
    epochs = -(-(prepared * seq_length + 1) // tokens)
    return (epochs * tokens - 1) // seq_length
