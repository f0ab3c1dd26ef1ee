"""What is known of a tokenizer from its files alone."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from pretrain.data.tokenizers.tokenizer import END_OF_DOCUMENT
from pretrain.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

END_TOKENS = (END_OF_DOCUMENT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<EOS>")
"""What tokenizers call the end of a document, the most specific name first."""

GPT2_END_TOKENS = (END_OF_DOCUMENT,)


def fingerprint_of(kind: str, *files: Path) -> str:
    """Return a hash of the files that define a tokenizer.

    Raises:
        DataError: one cannot be read.
    """
    digest = hashlib.sha256(kind.encode())
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as exc:
            msg = f"tokenizer file {file} cannot be read: {exc.strerror}.\nGive the path of an existing file."
            raise DataError(msg) from exc
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()
