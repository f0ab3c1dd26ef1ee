"""Permutation that is computed, not stored."""

from __future__ import annotations

import math
from hashlib import blake2b

_ROUNDS = 6


class Permutation:
    """A keyed bijection of range(size): one element takes a few microseconds and no memory.

    A Feistel network of six rounds over a x b >= size cells, with BLAKE2b as its round function, iterated until the
    result is below size (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). As a and b are about the
    root of size, few cells lie outside.

    Example:
        shuffled = Permutation(5, b"key")
        sorted(shuffled(index) for index in range(5))  # [0, 1, 2, 3, 4]
    """

    def __init__(self, size: int, key: bytes) -> None:
        """Choose the bijection of `key`.

        Args:
            size: of the range, at least 1.
            key: at most 64 bytes.
        """
        self.size = size
        rows = math.isqrt(size - 1) + 1
        self._sides = rows, -(-size // rows)
        self._keyed = blake2b(key=key, digest_size=8)

    def __call__(self, index: int) -> int:
        """Return the place of `index`, which is in range(size)."""
        if not 0 <= index < self.size:
            msg = f"{index} is not in range({self.size})"
            raise IndexError(msg)
        index = self._scrambled(index)
        while index >= self.size:
            index = self._scrambled(index)
        return index

    def _scrambled(self, cell: int) -> int:
        rows, columns = self._sides
        changed, kept = cell // columns, cell % columns  # in range(rows) and range(columns)
        for number in range(_ROUNDS):
            modulus = columns if number % 2 else rows
            changed, kept = kept, (changed + self._round(number, kept)) % modulus
        return changed * columns + kept

    def _round(self, number: int, value: int) -> int:
        digest = self._keyed.copy()
        digest.update(bytes([number]) + value.to_bytes(8, "little"))
        return int.from_bytes(digest.digest(), "little")
