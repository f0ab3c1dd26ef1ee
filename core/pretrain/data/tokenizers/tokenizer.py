"""Interface of all tokenizers, and the tokenizer of bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from pretrain.recipe.sections.data import TokenizerSection
    from pretrain.tokenizer_types import TokenizerType

# the end-of-document token of GPT-2, GPT-NeoX and of every tokenizer that `pretrain tokenizer train` makes
END_OF_DOCUMENT = "<|endoftext|>"
# of known tokenizers, the most specific name first
END_TOKENS = (END_OF_DOCUMENT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<EOS>")
GPT2_END_TOKENS = (END_OF_DOCUMENT,)
# Sixteen times the largest in use. The libraries allocate memory for every id up to the largest, and abort.
LARGEST_VOCAB = 1 << 22


class Tokenizer(Protocol):
    """Text to token ids in [0, vocab_size) and back; it can be pickled, and gives the same ids on every machine."""

    @property
    def vocab_size(self) -> int:
        """Largest token id plus one; the embedding may have more rows."""

    @property
    def eod(self) -> int | None:
        """Id of the token that ends a document, or None; `end_token` refuses None where one is needed."""

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


def end_token(tokenizer: Tokenizer, needed_by: str) -> int:
    """Return the id of the token that ends a document; DataError if the tokenizer has none."""
    if tokenizer.eod is None:
        msg = f"{needed_by} needs an end-of-document token, and the tokenizer has none.\n"
        msg += f"Leave it out, or take a tokenizer that has one of these: {', '.join(END_TOKENS)}."
        raise DataError(msg)
    return tokenizer.eod


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


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The same as a recipe's section `tokenizer`, without importing recipes, which takes longer than a small build."""

    type: TokenizerType
    vocab_file: str | None = None
    merge_file: str | None = None
    file: str | None = None


NamesTokenizer: TypeAlias = "TokenizerFiles | TokenizerSection"


def fingerprint_of(kind: str, *files: Path) -> str:
    """Return a hash of the files that define a tokenizer."""
    digest = hashlib.sha256(kind.encode())
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as exc:
            msg = f"tokenizer file {file} cannot be read: {exc.strerror}.\nGive the path of an existing file."
            raise DataError(msg) from exc
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def largest_id(file: Path) -> int | None:
    """Return the largest id in a vocab.json or tokenizer.json, None if it is not understood; DataError: too large."""
    import orjson  # noqa: PLC0415  10 ms that --help does not need

    try:
        largest = int(max(_ids_in(orjson.loads(file.read_bytes())), default=0))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # the library reports the error
    if largest >= LARGEST_VOCAB:
        msg = f"{file} holds the token id {largest:,}; the largest allowed is {LARGEST_VOCAB - 1:,}."
        raise DataError(msg)
    return largest


def _ids_in(content: Any) -> list[int]:
    model = content.get("model")
    if not isinstance(model, dict):  # GPT-2's vocab.json, in which "model" is a token
        return [*content.values()]
    vocab = model.get("vocab")
    of_model = [*vocab.values()] if isinstance(vocab, dict) else []
    return of_model + [token["id"] for token in content.get("added_tokens") or []]


def is_panic(exc: BaseException) -> bool:
    """Return whether a Rust library panicked: pyo3_runtime.PanicException is no Exception and cannot be imported."""
    return type(exc).__name__ == "PanicException"
