"""Describe token files as text for the terminal, and repair an index of Megatron-DeepSpeed.

Its preprocess_data.py --append-eod appends the end-of-document token to the ids of a document, but does not count it:
the index has one token less per document than .bin, and document i is read from i tokens too early.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pretrain.atomic_files import replacing
from pretrain.data.token_files.reading import SAMPLED_TOKENS, TokenFile, bin_path, check_ids, idx_path
from pretrain.data.token_files.tokenizer_stamp import check_stamp
from pretrain.data.token_files.writing import IndexPart, write_index
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from pretrain.data.tokenizers import Tokenizer

_PERCENTILES = {"shortest": 0, "25 %": 25, "median": 50, "75 %": 75, "99 %": 99, "longest": 100}
_SHOWN_TOKENS = 64
_CHECKED_ENDS = 100_000
_COMPARED_AT_ONCE = 1 << 20
_BAR = 40


def inspect_tokens(
    prefix: str, tokenizer: Tokenizer | None = None, *, samples: int = 1, all_ids: bool = False
) -> Iterator[str]:
    """Check the whole index and yield lines that describe the files.

    A tokenizer checks a million ids, or `all_ids`, and the documents' ends, and shows how `samples` documents begin.
    """
    tokens = TokenFile.open(prefix)
    tokens.check_order()
    if tokenizer is not None:
        check_stamp(prefix, tokenizer)
        check_ids(tokens, tokenizer.vocab_size, most=tokens.tokens.size if all_ids else SAMPLED_TOKENS)
    lengths = tokens.document_lengths()
    yield f"documents   {tokens.documents:,} ({int((lengths == 0).sum()):,} empty)"
    yield f"sequences   {tokens.lengths.size:,}"
    yield f"tokens      {tokens.tokens.size:,} as {tokens.tokens.dtype.name}"
    size = bin_path(prefix).stat().st_size
    yield f"files       {bin_path(prefix)} {size:,} bytes, {idx_path(prefix)} {idx_path(prefix).stat().st_size:,} bytes"
    if lengths.size:
        values = np.percentile(lengths, list(_PERCENTILES.values()), method="nearest").tolist()
        shown = ", ".join(f"{name} {value:,}" for name, value in zip(_PERCENTILES, values, strict=True))
        yield f"lengths     {shown}; mean {lengths.mean():,.1f} tokens a document"
        yield from _histogram(lengths)
    yield "integrity   sizes and offsets agree"
    if tokenizer is not None:
        yield from _text(tokens, lengths, tokenizer, samples, all_ids=all_ids)


def _histogram(lengths: npt.NDArray[np.int64]) -> Iterator[str]:
    """Yield a line for each power of two: the number of documents with at least so many tokens and fewer than twice."""
    bins = np.bincount(np.frexp(lengths.astype(np.float64))[1])  # 0: empty, 1: one token, 2: two or three, ...
    first = int(np.flatnonzero(bins)[0])
    for exponent, count in enumerate(bins.tolist()[first:], first):
        low, high = (1 << exponent) >> 1, (1 << exponent) - 1
        name = f"{low:,}" if low >= high else f"{low:,} to {high:,}"
        yield f"{name:>27} tokens {count:>13,} {'#' * -(-count * _BAR // int(bins.max()))}".rstrip()


def _text(
    tokens: TokenFile, lengths: npt.NDArray[np.int64], tokenizer: Tokenizer, samples: int, *, all_ids: bool
) -> Iterator[str]:
    checked = tokens.tokens.size if all_ids else min(tokens.tokens.size, SAMPLED_TOKENS)
    yield f"ids         {checked:,} checked, all below {tokenizer.vocab_size:,}"
    ends = np.cumsum(lengths)
    filled = np.flatnonzero(lengths)
    some = filled[_spread(filled.size, _CHECKED_ENDS)]
    if tokenizer.eod is None:
        yield "ends        the tokenizer has no end-of-document token"
    else:
        ended = int((tokens.tokens[ends[some] - 1] == tokenizer.eod).sum())
        yield f"ends        {ended:,} of {some.size:,} documents end in the end-of-document token {tokenizer.eod}"
    for number in filled[_spread(filled.size, samples)].tolist():
        begin = int(ends[number] - lengths[number])
        shown = tokens.tokens[begin : min(begin + _SHOWN_TOKENS, int(ends[number]))]
        yield f"document {number:,} begins with {tokenizer.decode(shown.tolist())!r}"


def _spread(size: int, most: int) -> npt.NDArray[Any]:
    """Return up to `most` places among `size`, from the first to the last."""
    return np.unique(np.linspace(0, max(size - 1, 0), min(size, most), dtype=np.int64))


def repair_lengths(prefix: str | Path) -> int:
    """Add the missing end-of-document tokens to the lengths; return their number; keep PREFIX.idx.before-repair."""
    tokens = TokenFile.open_unchecked(prefix)
    tokens.expect_index()
    idx = idx_path(prefix)
    ends = tokens.document_ends[1:]
    last = ends[np.diff(tokens.document_ends) > 0] - 1  # the last sequence of each document that has one
    missing = tokens.tokens.size - int(tokens.lengths.sum(dtype=np.int64))
    whole = tokens.tokens.size * tokens.tokens.itemsize == bin_path(prefix).stat().st_size
    if not missing or missing != last.size or not whole or tokens.lengths.min() < 0:
        msg = f"{idx} lacks no token; there is nothing to repair."
        if missing:
            msg = f"{idx} lacks {missing:,} tokens for {last.size:,} documents: only one for each could be repaired."
        raise DataError(msg)
    lengths = np.array(tokens.lengths)
    lengths[last] += 1
    _check_one_end(tokens, lengths, last)
    shutil.copyfile(idx, Path(f"{idx}.before-repair"))
    with replacing(idx) as stream:
        write_index(stream, tokens.tokens.dtype, [IndexPart(lengths, ends)])
    return missing


def _check_one_end(tokens: TokenFile, lengths: npt.NDArray[np.int32], last: npt.NDArray[np.int64]) -> None:
    """Raise DataError unless every document ends in the same token; otherwise other tokens are missing."""
    places = np.cumsum(lengths, dtype=np.int64)[last] - 1
    end = tokens.tokens[places[0]]
    for first in range(0, places.size, _COMPARED_AT_ONCE):
        if np.any(tokens.tokens[places[first : first + _COMPARED_AT_ONCE]] != end):
            what = "adding the missing token leaves documents that do not end in EOD"
            msg = f"{bin_path(tokens.prefix)}: {what}.\nBuild it again."
            raise DataError(msg)
