"""Interface of all tokenizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

END_OF_DOCUMENT = "<|endoftext|>"
"""The end-of-document token of GPT-2, GPT-NeoX and of every tokenizer that `pretrain tokenizer train` makes."""


class Tokenizer(Protocol):
    """Text to token ids and back. Every id is in [0, vocab_size).

    A tokenizer can be pickled, and the same text gives the same ids on every machine.
    """

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
