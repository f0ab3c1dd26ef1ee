"""Read and check Megatron's token files; the layout is described in `writing`."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, assert_never

import numpy as np

from pretrain.data.token_files.mapping import expect, expect_few, expect_in_file, mapped
from pretrain.data.token_files.writing import DTYPE_CODES, HEADER, MAGIC, VERSION
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

_T = TypeVar("_T")
_R = TypeVar("_R")
_LOOKING = 16  # files that are looked into at once
_WINDOWS = 64
_PROBES = 16
_END_BYTES = 1 << 20
_PARTS = 64
_PART_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A pair of token files (.bin and .idx), mapped into memory."""

    prefix: Path  # path without .bin and .idx
    tokens: npt.NDArray[Any]  # all ids, [tokens]
    lengths: npt.NDArray[np.int32]  # tokens of each sequence, [sequences]
    offsets: npt.NDArray[np.int64]  # begin of each sequence in .bin in bytes, [sequences]
    document_ends: npt.NDArray[np.int64]  # sequence at which each document ends, [documents + 1], from 0

    @classmethod
    def open(cls, prefix: str | Path) -> Self:
        """Map the files and compare their sizes; only a bounded part of the index is read."""
        found = cls.open_unchecked(prefix)
        found.check_size()
        return found

    @classmethod
    def open_unchecked(cls, prefix: str | Path) -> Self:
        """Map the files without checking that they belong together."""
        idx, bin_ = idx_path(prefix), bin_path(prefix)
        for path in (idx, bin_):
            if not path.is_file():
                raise _missing(path)
        dtype, sequences, documents = _read_header(idx)
        content = mapped(idx)
        expect_few(content)
        where = HEADER.size
        lengths = content[where : (where := where + 4 * sequences)].view("<i4")
        offsets = content[where : (where := where + 8 * sequences)].view("<i8")
        ends = content[where : where + 8 * documents].view("<i8")
        probes = np.linspace(0, lengths.size - 1, min(lengths.size, _PROBES), dtype=np.int64)
        if not ends.size or ends[0] != 0 or ends[-1] != lengths.size or np.any(lengths[probes] < 0):
            msg = f"{idx} is damaged: its documents do not end at sequence {lengths.size}.\nBuild the data again."
            raise DataError(msg)
        ids = mapped(bin_)
        tokens = ids[: ids.size - ids.size % dtype.itemsize].view(dtype)
        return cls(Path(prefix), tokens, lengths, offsets, ends)

    def check_size(self) -> None:
        """Compare the size of .bin with the index."""
        bin_, idx = bin_path(self.prefix), idx_path(self.prefix).name
        size = bin_.stat().st_size
        expected = int(self.offsets[-1]) + int(self.lengths[-1]) * self.tokens.itemsize if self.lengths.size else 0
        if size < expected:
            msg = f"{bin_} is truncated: {size} bytes, {idx} expects {expected}.\nCopy or build the data again."
            raise DataError(msg)
        if size > expected:
            msg = (
                f"{bin_} has {size} bytes, {idx} expects {expected}: every document but the first would be misread.\n"
                "Data of Megatron-DeepSpeed's preprocess_data.py --append-eod is like this.\n"
                "Build it again, or repair the index: pretrain data inspect --repair."
            )
            raise DataError(msg)

    @property
    def documents(self) -> int:
        """Number of documents, those without a token included."""
        return self.document_ends.size - 1

    def tokens_before(self, sequence: int) -> int:
        """Return the number of tokens before a sequence; all tokens for the index after the last sequence."""
        if sequence == self.lengths.size:
            return self.tokens.size
        return int(self.offsets[sequence]) // self.tokens.itemsize

    def tokens_in(self, sequences: range) -> int:
        """Return the number of tokens in consecutive sequences."""
        return self.tokens_before(sequences.stop) - self.tokens_before(sequences.start)

    def range_of(self, bounds: tuple[float, float], split_by: Literal["documents", "tokens"]) -> range:
        """Return the tokens of a split, whose begin and end are shares of the sequences or of the tokens."""
        match split_by:
            case "tokens":
                return split_range(bounds, self.tokens.size)
            case "documents":
                sequences = split_range(bounds, self.lengths.size)
                return range(self.tokens_before(sequences.start), self.tokens_before(sequences.stop))
            case _:
                assert_never(split_by)

    def document_lengths(self) -> npt.NDArray[np.int64]:
        """Return the tokens of each document, [documents] int64."""
        self.expect_index()
        before = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        return np.diff(before[self.document_ends])

    def expect_index(self) -> None:
        """Let the system read the whole index ahead; without this, only what is looked at is read."""
        for column in (self.lengths, self.offsets, self.document_ends):
            expect(column)

    def windows(self, max_tokens: int) -> Iterator[npt.NDArray[Any]]:
        """Yield parts of the ids spread evenly over the file, at most `max_tokens` in all; everything if it fits."""
        if self.tokens.size <= max_tokens:
            yield self.tokens
            return
        length = max(1, max_tokens // _WINDOWS)
        begins = np.linspace(0, self.tokens.size - length, max_tokens // length, dtype=np.int64)
        parts = [self.tokens[begin : begin + length] for begin in begins]
        for part in parts:
            expect(part)
        yield from parts

    def check_order(self) -> None:
        """Read the whole index: offsets must follow from the lengths, and documents must not run backwards."""
        self.expect_index()
        if self.lengths.size and self.lengths.min() < 0:
            msg = f"{idx_path(self.prefix)} is damaged: sequence {int(self.lengths.argmin())} has a negative length."
            raise DataError(msg)
        begins = np.cumsum(self.lengths, dtype=np.int64) - self.lengths
        wrong = np.flatnonzero(begins * self.tokens.itemsize != self.offsets)
        if wrong.size:
            first = int(wrong[0])
            msg = f"{idx_path(self.prefix)} is damaged: sequence {first} cannot begin at byte {self.offsets[first]}."
            raise DataError(msg)
        if np.any(np.diff(self.document_ends) < 0):
            msg = f"{idx_path(self.prefix)} is damaged: a document ends before it begins."
            raise DataError(msg)

    def identity(self) -> str:
        """Return a hash of the content. Times and paths are left out, so a copy has the same hash.

        It covers, of .idx and of .bin, the size, the first and the last MiB, and between them 64 parts of 16 KiB: so it
        differs for other text, and for exchanged documents if more than a 63rd of .bin lies between them. It does not
        detect a change between two parts that keeps both sizes.
        """
        digest = hashlib.sha256()
        for path in (idx_path(self.prefix), bin_path(self.prefix)):
            size = path.stat().st_size
            digest.update(str(size).encode())
            parts = _hashed(size)
            with path.open("rb") as stream:  # mapping so large a file again can take seconds
                expect_in_file(stream.fileno(), parts)
                for begin, end in parts:
                    stream.seek(begin)
                    digest.update(stream.read(end - begin))
        return digest.hexdigest()


def for_each(items: Iterable[_T], look: Callable[[_T], _R]) -> Iterator[_R]:
    """Yield what `look` returns of each, in their order: in threads, as looking into a file is waiting for its disk."""
    with ThreadPoolExecutor(_LOOKING) as pool:
        yield from pool.map(look, items)


def bin_path(prefix: str | Path) -> Path:
    """Return the path of the ids."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    """Return the path of the index."""
    return Path(f"{prefix}.idx")


def split_range(bounds: tuple[float, float], number: int) -> range:
    """Return a split of so many sequences (or tokens), as Megatron-LM rounds it.

    (BlendedMegatronDatasetBuilder._build_megatron_dataset_splits of 0.16.1)
    """
    return range(*(round(share * number) for share in bounds))


def _hashed(size: int) -> list[tuple[int, int]]:
    """Return (begin, end) of the hashed parts of a file of `size` bytes."""
    if size <= 2 * _END_BYTES:
        return [(0, size)]
    begins = np.linspace(_END_BYTES, max(_END_BYTES, size - _END_BYTES - _PART_BYTES), _PARTS, dtype=np.int64).tolist()
    return [(0, _END_BYTES), *((begin, begin + _PART_BYTES) for begin in begins), (size - _END_BYTES, size)]


def _missing(path: Path) -> DataError:
    longer = sorted(other.stem for other in path.parent.glob("*.idx") if other.stem.startswith(f"{path.stem}_"))
    near = f" Did you mean '{path.parent / longer[0]}'?" if longer else ""  # data build adds the key of the text
    return DataError(f"token file {path} is missing.{near}\nBuild it: pretrain data build INPUT --output-prefix ...")


def _read_header(idx: Path) -> tuple[np.dtype[Any], int, int]:
    size = idx.stat().st_size
    with idx.open("rb") as stream:
        content = stream.read(HEADER.size)
    if not content.startswith(MAGIC[: len(content)]) or not content:
        msg = f"{idx} is not an index of Megatron's format (it does not begin with MMIDIDX).\nBuild the data again."
        raise DataError(msg)
    if len(content) < HEADER.size:
        msg = f"{idx} is truncated: {size} bytes, less than its header of {HEADER.size}.\nBuild the data again."
        raise DataError(msg)
    _, version, code, sequences, documents = HEADER.unpack(content)
    if version != VERSION or code not in DTYPE_CODES:
        msg = f"{idx} has version {version} and dtype code {code}; only version {VERSION} and codes 1-5, 8 are read."
        raise DataError(msg)
    expected = HEADER.size + 12 * sequences + 8 * documents
    if size not in {expected, expected + sequences}:  # one more byte a sequence: the modes of multimodal data
        msg = f"{idx} is truncated or damaged: {size} bytes, its header expects {expected}.\nBuild the data again."
        raise DataError(msg)
    return DTYPE_CODES[code], sequences, documents


def unigram_entropy(prefix: str, vocab_size: int, max_tokens: int = 10_000_000) -> float:
    """Return the entropy of the token frequencies, the loss of the best model without context, in nats per token."""
    counts = np.zeros(vocab_size, np.int64)
    for window in TokenFile.open(prefix).windows(max_tokens):
        counts += np.bincount(window, minlength=vocab_size)[:vocab_size]
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


SAMPLED_TOKENS = 1 << 20


def check_ids(tokens: TokenFile, vocab_size: int, *, most: int = SAMPLED_TOKENS) -> None:
    """Check up to `most` ids, spread over the file, against the size of the vocabulary."""
    for window in tokens.windows(most):
        low, high = (int(window.min()), int(window.max())) if window.size else (0, 0)
        if low < 0 or high >= vocab_size:
            msg = (
                f"{bin_path(tokens.prefix)} holds token id {low if low < 0 else high}, but the tokenizer has only "
                f"{vocab_size} tokens.\nName the tokenizer the data was made with, or build the data again."
            )
            raise DataError(msg)
