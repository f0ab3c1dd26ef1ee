"""Write Megatron's token files: `.bin` with the ids, `.idx` with the position of each document."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
"""Begin of `.idx`, little endian and packed (megatron.core.datasets.indexed_dataset): magic, version, code of the token
dtype, number of sequences N, number of documents plus one D. Then int32[N] lengths in tokens, int64[N] byte offsets
into `.bin`, and int64[D] index of the sequence at which each document ends, beginning with 0."""
# token dtypes by code; 6 and 7, floating-point, differ between code bases and never hold tokens
_CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
DTYPE_CODES: dict[int, np.dtype[Any]] = {code: np.dtype(name) for code, name in _CODES.items()}
_WRITTEN_AT_ONCE = 1 << 20


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the dtype in which Megatron stores ids below `vocab_size`: uint16 below 65500, else int32."""
    return np.dtype("<u2") if vocab_size < 65500 else np.dtype("<i4")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Consecutive documents as token ids."""

    tokens: npt.NDArray[Any]  # ids of all sequences, [tokens], in the dtype of the file
    lengths: npt.NDArray[np.int32]  # tokens of each sequence, [sequences]
    sequences: npt.NDArray[np.int64]  # of each document, [documents]; 0 for a document without a token


class IndexPart(NamedTuple):
    """Lengths and ends of consecutive documents for an index; the arrays may be files mapped into memory."""

    lengths: npt.NDArray[np.int32]  # tokens of each sequence, [sequences]
    document_ends: npt.NDArray[np.int64]  # sequence at which each document ends, [documents], from the part's first


class Written(NamedTuple):
    """Amount that a `TokenWriter` has written."""

    documents: int = 0
    sequences: int = 0
    tokens: int = 0


NOTHING = Written()


class TokenWriter:
    """Append documents to three files, the ids and the arrays of an `IndexPart`, after those that are `written`.

    All three grow by whole documents, so that a stopped build can be truncated to the last whole document.
    """

    def __init__(
        self, tokens: IO[bytes], lengths: IO[bytes], document_ends: IO[bytes], *, written: Written = NOTHING
    ) -> None:
        self._files = (tokens, lengths, document_ends)
        self.written = written

    def add(self, encoded: Encoded) -> None:
        """Append documents; if it raises, `written` is as before."""
        before = self.written
        ends = before.sequences + np.cumsum(encoded.sequences, dtype="<i8")
        arrays = (encoded.tokens, encoded.lengths.astype("<i4", copy=False), ends)
        for file, array in zip(self._files, arrays, strict=True):
            write_all(file, np.ascontiguousarray(array).data.cast("B"))
        self.written = Written(
            before.documents + encoded.sequences.size,
            before.sequences + encoded.lengths.size,
            before.tokens + encoded.tokens.size,
        )


def write_index(idx_file: IO[bytes], dtype: np.dtype[Any], parts: Iterable[IndexPart]) -> None:
    """Write `.idx` for the documents of all parts, which are iterated several times; memory does not grow with them."""
    code = next(code for code, known in DTYPE_CODES.items() if known == dtype)
    sequences, documents = (sum(part[field].size for part in parts) for field in (0, 1))
    write_all(idx_file, HEADER.pack(MAGIC, VERSION, code, sequences, documents + 1))
    for part in parts:
        for window in _windows(part.lengths):
            write_all(idx_file, window.astype("<i4", copy=False).data)
    begin = 0
    for window in (window for part in parts for window in _windows(part.lengths)):
        ends = begin + np.cumsum(window, dtype="<i8") * dtype.itemsize
        write_all(idx_file, np.concatenate([np.array([begin], "<i8"), ends[:-1]]).data)
        begin = int(ends[-1])
    write_all(idx_file, bytes(8))
    before = 0
    for part in parts:
        for window in _windows(part.document_ends):
            write_all(idx_file, (window + before).astype("<i8", copy=False).data)
        before += part.lengths.size


def _windows(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    yield from (array[first : first + _WRITTEN_AT_ONCE] for first in range(0, array.size, _WRITTEN_AT_ONCE))


def write_all(file: IO[bytes], content: bytes | memoryview) -> None:
    """Write everything. An unbuffered file may accept only a part, for example when the disk becomes full."""
    left = memoryview(content).cast("B")
    while left:
        left = left[file.write(left) :]
