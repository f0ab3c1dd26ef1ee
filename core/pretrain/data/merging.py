"""Joining several pairs of token files into one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pretrain.data.build import Built
from pretrain.data.fingerprint import fingerprint_path
from pretrain.data.replacing import refuse_existing, replacing
from pretrain.data.token_file import TokenFile, bin_path, idx_path
from pretrain.data.token_writer import Encoded, TokenWriter
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_COPIED_AT_ONCE = 1 << 24
_NO_TOKENS = np.zeros(0, np.int32)
_NO_SEQUENCES = np.zeros(0, np.int64)


def merge_tokens(prefixes: Sequence[Path], output: Path, *, force: bool = False) -> Built:
    """Write the documents of all `prefixes`, in their order, into `output`.bin and `output`.idx.

    Raises:
        DataError: an input is missing or damaged, or they hold different dtypes or were made with different tokenizers.
    """
    refuse_existing([idx_path(output), bin_path(output)], force=force)
    parts = [TokenFile.open(prefix) for prefix in prefixes]
    for part in parts:
        part.check_order()
    _check_alike(parts)
    note = _common_note(prefixes)
    with replacing(idx_path(output)) as idx_file:
        with replacing(bin_path(output)) as bin_file:
            writer = TokenWriter(bin_file, parts[0].tokens.dtype)
            for part in parts:
                _copy(part, writer)
            writer.write_index(idx_file)
            idx_path(output).unlink(missing_ok=True)
        if note is not None:
            with replacing(fingerprint_path(output)) as stream:
                stream.write(note)
    return Built(writer.documents, writer.tokens, parts[0].tokens.itemsize)


def _copy(part: TokenFile, writer: TokenWriter) -> None:
    for begin in range(0, part.tokens.size, _COPIED_AT_ONCE):
        writer.add(Encoded(part.tokens[begin : begin + _COPIED_AT_ONCE], _NO_TOKENS, _NO_SEQUENCES))
    writer.add(Encoded(part.tokens[:0], np.array(part.lengths), np.diff(part.document_ends)))


def _check_alike(parts: Sequence[TokenFile]) -> None:
    first = parts[0]
    for part in parts:
        if part.tokens.dtype != first.tokens.dtype:
            msg = (
                f"{first.prefix} holds {first.tokens.dtype.name} tokens and {part.prefix} {part.tokens.dtype.name}.\n"
                "Files of one tokenizer have one dtype; these were made with different ones."
            )
            raise DataError(msg)


def _common_note(prefixes: Sequence[Path]) -> bytes | None:
    """Return the note about the tokenizer, if every input has one."""
    paths = [fingerprint_path(prefix) for prefix in prefixes]
    notes = {path.read_bytes() if path.exists() else None for path in paths}
    if len(notes - {None}) > 1:
        msg = f"{', '.join(map(str, prefixes))} were made with different tokenizers; their tokens mean different text."
        raise DataError(msg)
    return None if None in notes else notes.pop()
