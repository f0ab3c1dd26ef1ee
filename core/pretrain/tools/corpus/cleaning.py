"""Clean a corpus while it is built: broken characters, short documents, exact duplicates."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from pretrain.data.token_files.writing import Encoded

DIGEST_BYTES = 16
"""Digest of a document; among 10^12 different documents two have the same one with a probability below 10^-14."""


@dataclass(frozen=True, slots=True)
class Cleaning:
    """Cleaning steps, applied in this order; none by default.

    Attributes:
        fix_text: repair broken characters (mojibake, HTML entities, control characters) with ftfy's `fix_text`.
        min_length: leave out documents with fewer characters.
        drop_duplicates: leave out documents with exactly the text of an earlier one.
    """

    fix_text: bool = False
    min_length: int = 0
    drop_duplicates: bool = False


NO_CLEANING = Cleaning()


def clean(documents: list[list[str]], cleaning: Cleaning) -> list[list[str]]:
    """Return the documents with repaired characters, without the short ones.

    Raises:
        DataError: ftfy is needed and not installed.
    """
    if cleaning.fix_text:
        fix = text_fixer()
        documents = [[fix(text) for text in document] for document in documents]
    return [document for document in documents if sum(map(len, document)) >= cleaning.min_length]


def text_fixer() -> Callable[[str], str]:
    """Return ftfy's `fix_text`.

    Raises:
        DataError: ftfy is not installed.
    """
    try:
        import ftfy  # noqa: PLC0415  an extra
    except ImportError as exc:
        msg = "--clean repairs texts with ftfy, which is not installed.\nInstall it: pip install 'pretrain[data]'"
        raise DataError(msg) from exc
    fix: Callable[[str], str] = ftfy.fix_text
    return fix


def digests_of(documents: Sequence[Sequence[str]]) -> list[bytes]:
    """Return a digest of each document; equal documents have equal digests."""
    return [_digest(document) for document in documents]


def _digest(document: Sequence[str]) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for text in document:
        content = text.encode()
        digest.update(b"%d:" % len(content))  # ["ab", "c"] is not ["a", "bc"]
        digest.update(content)
    return digest.digest()


class SeenDocuments:
    """The digests of all documents so far: about 100 bytes of memory each."""

    def __init__(self, digests: bytes = b"") -> None:
        """Begin with the concatenated digests of earlier documents."""
        self._seen = {digests[place : place + DIGEST_BYTES] for place in range(0, len(digests), DIGEST_BYTES)}

    def add(self, digests: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Return True for each new document, [documents], and remember them."""
        new = np.zeros(len(digests), bool)
        for number, digest in enumerate(digests):
            new[number] = digest not in self._seen
            self._seen.add(digest)
        return new


def select_documents(encoded: Encoded, documents: npt.NDArray[np.bool_]) -> Encoded:
    """Return the documents of `encoded` that are True in `documents`."""
    if documents.all():
        return encoded
    sequences = np.repeat(documents, encoded.sequences)
    tokens = np.repeat(sequences, encoded.lengths)
    return replace(
        encoded,
        tokens=encoded.tokens[tokens],
        lengths=encoded.lengths[sequences],
        sequences=encoded.sequences[documents],
    )
