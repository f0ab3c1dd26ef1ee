"""Repair the index of token files that Megatron-DeepSpeed's preprocess_data.py --append-eod made.

Its encoder appends the end-of-document token to the ids of a document, but does not count it in the length of the last
sentence (Megatron-LM has `sentence_lens[-1] += 1`). So the index has one token less per document than .bin,
and document i is read from i tokens too early.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pretrain.atomic_files import replacing
from pretrain.data.token_files.reading import TokenFile, bin_path, idx_path
from pretrain.data.token_files.writing import IndexPart, write_index
from pretrain.errors import DataError

if TYPE_CHECKING:
    import numpy.typing as npt

_COMPARED_AT_ONCE = 1 << 20


def repair_lengths(prefix: str | Path) -> int:
    """Add the missing end-of-document tokens to the lengths; the old index is kept as PREFIX.idx.before-repair.

    Returns:
        Number of missing tokens.

    Raises:
        DataError: the files are missing, are intact, or have another fault.
    """
    tokens = TokenFile.open_unchecked(prefix)
    idx = idx_path(prefix)
    ends = tokens.document_ends[1:]
    last = ends[np.diff(tokens.document_ends) > 0] - 1  # the last sequence of each document that has one
    missing = tokens.tokens.size - int(tokens.lengths.sum(dtype=np.int64))
    whole = tokens.tokens.size * tokens.tokens.itemsize == bin_path(prefix).stat().st_size
    if not missing or missing != last.size or not whole or tokens.lengths.min() < 0:
        msg = f"{idx} lacks {missing:,} tokens of {last.size:,} documents: not one for each, so it cannot be repaired."
        raise DataError(msg if missing else f"{idx} lacks no token; there is nothing to repair.")
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
            msg = f"{bin_path(tokens.prefix)}: with one more, the documents do not end in one token.\nBuild it again."
            raise DataError(msg)
