"""Interface of all tokenizers, and the tokenizer of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt


END_OF_DOCUMENT = "<|endoftext|>"
"""The end-of-document token of GPT-2, GPT-NeoX and of every tokenizer that `pretrain tokenizer train` makes."""


class Tokenizer(Protocol):
    """Text to token ids in [0, vocab_size) and back; it can be pickled, and gives the same ids on every machine."""

    @property
    def vocab_size(self) -> int:
        """Largest token id plus one; the embedding may have more rows."""

    @property
    def eod(self) -> int:
        """Id of the token that ends a document."""

    @property
    def fingerprint(self) -> str:
        """Hash of everything that defines the ids; two tokenizers with one fingerprint give the same ids."""

    @property
    def added_tokens(self) -> Sequence[str]:
        """Tokens that are searched in a text before pre-tokenization; may be empty."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without an end-of-document token."""

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Sequence[int] | npt.NDArray[np.unsignedinteger[Any]]]:
        """Return the ids of each text, as `encode` would; in the calling thread."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`. Ids outside the vocabulary (from a padded embedding) are left out."""


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
