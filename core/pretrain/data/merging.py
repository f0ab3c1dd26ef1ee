"""Joining several pairs of token files into one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.data.build import Built
from pretrain.data.fingerprint import common_note, fingerprint_path
from pretrain.data.replacing import refuse_existing, replacing
from pretrain.data.sharding import check_complete
from pretrain.data.token_file import TokenFile, bin_path, idx_path
from pretrain.data.token_writer import IndexPart, write_index
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_COPIED_AT_ONCE = 1 << 24


def merge_tokens(prefixes: Sequence[Path], output: Path, *, force: bool = False) -> Built:
    """Write the documents of all `prefixes`, in their order, into `output`.bin and `output`.idx.

    Raises:
        DataError: an input is missing or damaged, they hold different dtypes or were made with different tokenizers, or
            some of them are shards, but not all shards of one build in order.
    """
    check_complete(prefixes)
    refuse_existing([idx_path(output), bin_path(output)], force=force)
    parts = [TokenFile.open(prefix) for prefix in prefixes]
    for part in parts:
        part.check_order()
    _check_alike(parts)
    note = common_note(prefixes)
    with replacing(idx_path(output)) as idx_file:
        with replacing(bin_path(output)) as bin_file:
            for part in parts:
                for begin in range(0, part.tokens.size, _COPIED_AT_ONCE):
                    bin_file.write(part.tokens[begin : begin + _COPIED_AT_ONCE].data)
            index = [IndexPart(part.lengths, part.document_ends[1:]) for part in parts]
            write_index(idx_file, parts[0].tokens.dtype, index)
            idx_path(output).unlink(missing_ok=True)
        if note is not None:
            with replacing(fingerprint_path(output)) as stream:
                stream.write(note)
    sizes = [(part.documents, part.lengths.size, part.tokens.size) for part in parts]
    documents, sequences, tokens = map(sum, zip(*sizes, strict=True))
    return Built(documents, sequences, tokens, parts[0].tokens.itemsize)


def _check_alike(parts: Sequence[TokenFile]) -> None:
    first = parts[0]
    for part in parts:
        if part.tokens.dtype != first.tokens.dtype:
            msg = (
                f"{first.prefix} holds {first.tokens.dtype.name} tokens and {part.prefix} {part.tokens.dtype.name}.\n"
                "Files of one tokenizer have one dtype; these were made with different ones."
            )
            raise DataError(msg)
