"""Writing Megatron's token files: `.bin` with the ids, `.idx` that says where each document begins.

Layout of `.idx`, little endian and packed (megatron.core.datasets.indexed_dataset): 9 bytes "MMIDIDX" and two zeros,
uint64 version 1, uint8 code of the token dtype, uint64 number of sequences N, uint64 number of documents plus one D;
then int32[N] lengths in tokens, int64[N] byte offsets into `.bin`, int64[D] the sequence at which each document ends,
beginning with 0. `.bin` is the ids of all sequences, one after the other. A document is one sequence, or one per
sentence.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPE_CODES: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
"""Token dtypes by code. 6 and 7, the floating ones, differ between code bases and never hold tokens."""

_WRITTEN_AT_ONCE = 1 << 20


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the dtype Megatron stores ids below `vocab_size` in: uint16 below 65500, else int32."""
    return np.dtype("<u2") if vocab_size < 65500 else np.dtype("<i4")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Consecutive documents as token ids.

    Attributes:
        tokens: ids of all sequences, [tokens], in the dtype of the file.
        lengths: tokens of each sequence, [sequences] int32.
        sequences: sequences of each document, [documents] int64; 0 for a document without a token.
    """

    tokens: npt.NDArray[Any]
    lengths: npt.NDArray[np.int32]
    sequences: npt.NDArray[np.int64]


class TokenWriter:
    """Writes one pair of files in the order in which documents are added.

    The index is kept in memory until it is written: 12 bytes a document.
    """

    def __init__(self, bin_file: IO[bytes], dtype: np.dtype[Any]) -> None:
        self._bin = bin_file
        self._dtype = dtype
        self._lengths: list[npt.NDArray[np.int32]] = []
        self._sequences: list[npt.NDArray[np.int64]] = []
        self.tokens = 0
        self.documents = 0

    def add(self, encoded: Encoded) -> None:
        """Append documents."""
        self._bin.write(np.ascontiguousarray(encoded.tokens, dtype=self._dtype).data)
        self._lengths.append(encoded.lengths)
        self._sequences.append(encoded.sequences)
        self.tokens += encoded.tokens.size
        self.documents += encoded.sequences.size

    def write_index(self, idx_file: IO[bytes]) -> None:
        """Write `.idx` for all documents added so far."""
        lengths = np.concatenate([np.zeros(0, "<i4"), *self._lengths])
        sequences = np.concatenate([np.zeros(1, "<i8"), *self._sequences])
        code = next(code for code, dtype in DTYPE_CODES.items() if dtype == self._dtype)
        idx_file.write(HEADER.pack(MAGIC, VERSION, code, lengths.size, sequences.size))
        idx_file.write(lengths.astype("<i4", copy=False).data)
        self._write_offsets(idx_file, lengths)
        idx_file.write(np.cumsum(sequences, dtype="<i8").data)

    def _write_offsets(self, idx_file: IO[bytes], lengths: npt.NDArray[np.int32]) -> None:
        """Write where each sequence begins, a part at a time, because all offsets at once can be gigabytes."""
        begin = 0
        for first in range(0, lengths.size, _WRITTEN_AT_ONCE):
            ends = begin + np.cumsum(lengths[first : first + _WRITTEN_AT_ONCE], dtype="<i8") * self._dtype.itemsize
            idx_file.write(np.concatenate([np.array([begin], "<i8"), ends[:-1]]).data)
            begin = int(ends[-1])
