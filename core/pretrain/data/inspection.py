"""What is inside token files, as text for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pretrain.data.fingerprint import check_fingerprint
from pretrain.data.token_file import TokenFile, bin_path, idx_path
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.data.tokenizers import Tokenizer

SAMPLED_TOKENS = 1 << 20
_PERCENTILES = (0, 25, 50, 75, 99, 100)
_SHOWN_TOKENS = 64


def check_ids(tokens: TokenFile, vocab_size: int) -> None:
    """Look through up to a million ids spread over the file for one that the vocabulary does not have.

    Raises:
        DataError: there is one.
    """
    for window in tokens.windows(SAMPLED_TOKENS):
        low, high = (int(window.min()), int(window.max())) if window.size else (0, 0)
        if low < 0 or high >= vocab_size:
            msg = (
                f"{bin_path(tokens.prefix)} holds token id {low if low < 0 else high}, but the tokenizer has only "
                f"{vocab_size} tokens.\nName the tokenizer the data was made with, or build the data again."
            )
            raise DataError(msg)


def inspect_tokens(prefix: str, tokenizer: Tokenizer | None = None) -> Iterator[str]:
    """Check the whole index and yield lines that describe the files; with a tokenizer also how the text begins.

    Raises:
        DataError: the files are damaged, or were made with another tokenizer.
    """
    tokens = TokenFile.open(prefix)
    tokens.check_order()
    if tokenizer is not None:
        check_fingerprint(prefix, tokenizer)
        check_ids(tokens, tokenizer.vocab_size)
    lengths = tokens.document_lengths()
    yield f"documents   {tokens.documents:,} ({int((lengths == 0).sum()):,} empty)"
    yield f"sequences   {tokens.lengths.size:,}"
    yield f"tokens      {tokens.tokens.size:,} as {tokens.tokens.dtype.name}"
    size = bin_path(prefix).stat().st_size
    yield f"files       {bin_path(prefix)} {size:,} bytes, {idx_path(prefix)} {idx_path(prefix).stat().st_size:,} bytes"
    if lengths.size:
        values = np.percentile(lengths, _PERCENTILES, method="nearest")
        names = ("shortest", "25 %", "median", "75 %", "99 %", "longest")
        shown = ", ".join(f"{name} {value:,}" for name, value in zip(names, values.tolist(), strict=True))
        yield f"lengths     {shown}; mean {lengths.mean():,.1f} tokens a document"
    yield "integrity   sizes and offsets agree"
    if tokenizer is not None:
        yield f"begins with {tokenizer.decode(tokens.tokens[:_SHOWN_TOKENS].tolist())!r}"
