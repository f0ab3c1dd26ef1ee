"""Merge several pairs of token files into one."""

from __future__ import annotations

import fcntl
import glob
import re
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from pretrain.atomic_files import refuse_existing, replacing
from pretrain.data.token_files.reading import TokenFile, bin_path, idx_path
from pretrain.data.token_files.tokenizer_stamp import common_stamp, stamp_path
from pretrain.data.token_files.writing import NOTHING, IndexPart, Written, write_index
from pretrain.errors import DataError
from pretrain.tools.corpus.build import Built
from pretrain.tools.corpus.inputs import Shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

_COPIED_AT_ONCE = 1 << 24
_NAME = re.compile(r"-(\d{5})-of-(\d{5})$")


def merge_tokens(prefixes: Sequence[Path], output: Path, *, force: bool = False) -> Built:
    """Write the documents of all `prefixes`, in their order, into `output`.bin and `output`.idx."""
    _check_complete(prefixes)
    refuse_existing([idx_path(output)], force=force)  # which is written last: ids alone are of a killed merge
    dtype, written = _checked(prefixes)
    note = common_stamp(prefixes)
    for path in (idx_path(output), bin_path(output)):
        _remove_abandoned(path)
    with replacing(idx_path(output)) as idx_file:
        _lock(idx_file)
        with replacing(bin_path(output)) as bin_file:
            _lock(bin_file)
            for prefix in prefixes:
                _copy(TokenFile.open_unchecked(prefix).tokens, bin_file)
            write_index(idx_file, dtype, _Indexes(prefixes))
            idx_path(output).unlink(missing_ok=True)
        if note is None:
            stamp_path(output).unlink(missing_ok=True)  # of files that are replaced
        else:
            with replacing(stamp_path(output)) as stream:
                stream.write(note)
    return Built(*written, dtype.itemsize)


def _check_complete(prefixes: Sequence[Path]) -> None:
    found = [(path, _NAME.search(path.name)) for path in prefixes]
    shards = [(path, end.start(), Shard(int(end[1]), int(end[2]))) for path, end in found if end]
    for expected, (path, end, shard) in enumerate(shards):
        if len(shards) != len(prefixes) or shard != Shard(expected, len(shards)):
            msg = f"{path} is shard {shard.number} of {shard.count}, but number {expected} of {len(prefixes)} inputs.\n"
            msg += "Merge all shards in order, as NAME-*-of-*.idx gives them; merge other files afterwards."
            raise DataError(msg)
        first = shards[0][0]
        if path.name[:end] != first.name[: shards[0][1]]:
            msg = f"{first} and {path} are shards with different names.\nMerge the shards of each name separately."
            raise DataError(msg)


class _Indexes:
    """The indexes of all parts, each open only while it is read: a process cannot open that many files."""

    def __init__(self, prefixes: Sequence[Path]) -> None:
        self._prefixes = prefixes

    def __iter__(self) -> Iterator[IndexPart]:
        for prefix in self._prefixes:
            part = TokenFile.open_unchecked(prefix)
            part.expect_index()
            yield IndexPart(part.lengths, part.document_ends[1:])


def _checked(prefixes: Sequence[Path]) -> tuple[np.dtype[Any], Written]:
    """Check every part, and return their dtype and the total of their documents, sequences and tokens."""
    first = TokenFile.open(prefixes[0])
    dtype, written = first.tokens.dtype, NOTHING
    for prefix in prefixes:
        part = TokenFile.open(prefix)
        part.check_order()
        if part.tokens.dtype != dtype:
            msg = f"{first.prefix} holds {dtype.name} tokens, but {part.prefix} {part.tokens.dtype.name}.\n"
            msg += "They were made with different tokenizers, and cannot be merged."
            raise DataError(msg)
        sizes = (part.documents, part.lengths.size, part.tokens.size)
        written = Written(*map(sum, zip(written, sizes, strict=True)))
    return dtype, written


def _copy(tokens: npt.NDArray[Any], bin_file: IO[bytes]) -> None:
    for begin in range(0, tokens.size, _COPIED_AT_ONCE):
        bin_file.write(tokens[begin : begin + _COPIED_AT_ONCE].data)


def _lock(file: IO[bytes]) -> None:
    """Lock a file that is being written; the system releases the lock when the process ends in any way."""
    with suppress(OSError):  # not every shared disk has locks; nothing is removed there
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files of killed merges into `path`; they can be as large as the result."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with suppress(OSError), left.open("r+b") as stream:  # another process writes it, or has removed it
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()
