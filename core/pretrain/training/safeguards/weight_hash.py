"""A hash of weights on their device: the same bits have the same hash on every device, other bits almost never.

The bits of a bucket of weights are read as 32-bit words w_i, and the hash is the sum of w_i c_i modulo 2^64, with odd
numbers c_i that depend on the position alone (SplitMix64's mixing function; Steele, Lea, Flood: Fast splittable
pseudorandom number generators, OOPSLA 2014). A multilinear hash of this kind is order-sensitive, and its sum may be
taken in any order (Lemire, Kaser: Strongly universal string hashing is fast, 2014):

- one word that differs is always found, whichever of its bits: |w - w'| < 2^32 times an odd number is not 0 modulo
  2^64;
- several words that differ have equal hashes with a probability of at most 2^-32 over numbers c_i that are drawn, and
  of 2^-63 where at least one of the differences is odd.

Integer arithmetic of tensors wraps around. It costs one copy of a bucket, one multiplication and one sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

BUCKET = 1 << 24
"""Bytes of weights that are hashed at a time: 16 MiB, and five times as much beside them."""

_STEP = 0x9E3779B97F4A7C15 - (1 << 64)  # as a signed number
_MIX = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


class WeightHash:
    """Hashes of buckets of weights; keeps the numbers c_i for the longest bucket so far."""

    def __init__(self) -> None:
        self._multipliers = torch.empty(0, dtype=torch.int64)

    def buckets(self, weights: Iterable[Tensor]) -> Tensor:
        """Return the hashes of all buckets of weights, int64 [buckets], on their device; does not wait for it.

        Weights that differ in size, order or dtype have other buckets. The gradient is not recorded.
        """
        return torch.stack([self._of(bucket) for bucket in _buckets(weights)])

    def one(self, weight: Tensor) -> Tensor:
        """Return the hash of one weight, int64 scalar, on its device."""
        hashes = self.buckets([weight])
        return (hashes * multipliers(len(hashes), hashes.device)).sum()  # odd too: buckets that change places differ

    def _of(self, words: Tensor) -> Tensor:
        if self._multipliers.device != words.device or len(self._multipliers) < len(words):
            self._multipliers = multipliers(len(words), words.device)
        return (words * self._multipliers[: len(words)]).sum()


def multipliers(count: int, device: torch.device) -> Tensor:
    """Return the numbers c_i of the first positions, odd int64 [count]."""
    state = torch.arange(1, count + 1, device=device) * _STEP
    for shift, factor in zip((30, 27), _MIX, strict=True):
        # The shift of signed numbers brings in copies of the sign, which are masked away.
        state = (state ^ ((state >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return (state ^ ((state >> 31) & ((1 << 33) - 1))) | 1


def _buckets(weights: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the bits of the weights as int32 words, about `BUCKET` at a time."""
    parts: list[Tensor] = []
    size = 0
    for weight in weights:
        for part in torch.split(weight.detach().reshape(-1), max(1, BUCKET // weight.element_size())):
            if parts and (size + part.nbytes > BUCKET or part.dtype != parts[0].dtype):
                yield _words(parts)
                parts, size = [], 0
            parts.append(part)
            size += part.nbytes
    if parts:
        yield _words(parts)


def _words(parts: Sequence[Tensor]) -> Tensor:
    flat = parts[0] if len(parts) == 1 else torch.cat(tuple(parts))
    odd = -flat.numel() * flat.element_size() % 4
    if odd:
        flat = torch.cat((flat.view(torch.uint8), torch.zeros(odd, dtype=torch.uint8, device=flat.device)))
    elif flat.storage_offset() * flat.element_size() % 4:
        flat = flat.clone()  # a view as wider words has to begin at a whole one
    return flat.view(torch.int32)
