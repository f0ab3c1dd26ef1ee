"""The files that define a tokenizer, and facts that are read from them without loading it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pretrain.data.tokenizers.tokenizer import END_OF_DOCUMENT
from pretrain.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.recipe.sections.data import TokenizerSection
    from pretrain.tokenizer_types import TokenizerType

LARGEST_VOCAB = 1 << 22
"""Sixteen times the largest in use. The libraries allocate memory for every id up to the largest, and abort."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The same as a recipe's section `tokenizer`, without importing recipes, which takes longer than a small build."""

    type: TokenizerType
    vocab_file: str | None = None
    merge_file: str | None = None
    file: str | None = None


NamesTokenizer: TypeAlias = "TokenizerFiles | TokenizerSection"

END_TOKENS = (END_OF_DOCUMENT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<EOS>")
"""End-of-document tokens of known tokenizers, the most specific name first."""

GPT2_END_TOKENS = (END_OF_DOCUMENT,)


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
