"""Byte tokenizer: one token per byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.data.tokenizers.tokenizer import END_OF_DOCUMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt


class ByteTokenizer:
    """The 256 bytes of UTF-8, and 256 as the end of a document. Needs no file."""

    vocab_size = 257
    eod = 256
    fingerprint = "bytes"
    added_tokens = ()

    def encode(self, text: str) -> list[int]:
        """Return the UTF-8 bytes of `text`."""
        return list(text.encode())

    def encode_batch(self, texts: Sequence[str]) -> list[npt.NDArray[np.uint8]]:
        """Return the UTF-8 bytes of each text, without an object for each."""
        import numpy as np  # noqa: PLC0415  --help and recipes import this module and need no numpy

        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        end = END_OF_DOCUMENT.encode()
        return b"".join(end if i == self.eod else bytes([i]) for i in ids if 0 <= i <= self.eod).decode(
            errors="replace"
        )
