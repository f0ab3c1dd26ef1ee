"""Convert a chunk to token ids: read, clean, encode. This is the work of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pretrain.data.token_files.writing import Encoded, token_dtype
from pretrain.data.tokenizers.files import is_panic
from pretrain.errors import DataError
from pretrain.tools.corpus.cleaning import NO_CLEANING, clean, digests_of
from pretrain.tools.corpus.compared_texts import comparisons_of, parts_of
from pretrain.tools.corpus.sources.documents import read_documents, where

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pretrain.data.tokenizers import Tokenizer
    from pretrain.tools.corpus.chunks import Chunk
    from pretrain.tools.corpus.cleaning import Cleaning
    from pretrain.tools.corpus.compared_texts import ComparedPart, Part
    from pretrain.tools.corpus.sources.documents import Faults


@dataclass(frozen=True, slots=True)
class Encoding:
    """Options of the conversion from documents to ids.

    Attributes:
        json_key: the key, or of a table the column, that holds the text.
        append_eod: end every document with the tokenizer's end-of-document token.
        skip_faults: leave out and count malformed documents, instead of stopping.
        cleaning: applied before encoding.
    """

    json_key: str = "text"
    append_eod: bool = False
    skip_faults: bool = False
    cleaning: Cleaning = NO_CLEANING


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """Result of encoding a chunk.

    Attributes:
        encoded: the documents.
        faults: malformed documents.
        short: number of documents left out because they are short.
        digests: of each document, if duplicates are dropped.
        texts: number of non-empty texts.
        comparisons: parts to compare with the reference tokenizer.
    """

    encoded: Encoded
    faults: Faults
    short: int
    digests: list[bytes]
    texts: int
    comparisons: list[ComparedPart]


class Prepared(NamedTuple):
    """The documents of a chunk before they are encoded.

    Attributes:
        documents: sentences of each document.
        texts: all sentences, concatenated.
        parts: of `texts`, for the comparison with the reference.
        faults: malformed documents.
        short: number of documents left out because they are short.
    """

    documents: list[list[str]]
    texts: list[str]
    parts: list[Part]
    faults: Faults
    short: int


def encode_chunk(tokenizer: Tokenizer, chunk: Chunk, encoding: Encoding) -> EncodedChunk:
    """Return the tokens of a chunk. Sentences without a token are left out; documents without one are kept.

    Raises:
        DataError: a document is malformed and not skipped, or the tokenizer's library fails.
    """
    prepared = prepare(tokenizer, chunk, encoding)
    return assemble(tokenizer, prepared, ids_of(tokenizer, prepared, chunk), encoding)


def prepare(tokenizer: Tokenizer, chunk: Chunk, encoding: Encoding) -> Prepared:
    """Read and clean the documents of a chunk.

    Raises:
        DataError: a document is malformed and not skipped.
    """
    found = read_documents(chunk, encoding.json_key, skip=encoding.skip_faults)
    documents = clean(found.texts, encoding.cleaning)
    texts = list(chain.from_iterable(documents))
    short = len(found.texts) - len(documents)
    return Prepared(documents, texts, parts_of(tokenizer.added_tokens, texts), found.faults, short)


def ids_of(tokenizer: Tokenizer, prepared: Prepared, chunk: Chunk) -> Sequence[Any]:
    """Encode the texts of a chunk, then their parts.

    Raises:
        DataError: the tokenizer's library (Rust) panics.
    """
    try:
        return tokenizer.encode_batch([*prepared.texts, *(part.text for part in prepared.parts)])
    except BaseException as exc:
        if not is_panic(exc):
            raise
        msg = (
            f"{where(chunk)} or a later line: the tokenizer's library failed: {exc}.\n"
            "Pass --encoder tokenizers, or leave out the document that does this."
        )
        raise DataError(msg) from exc


def assemble(tokenizer: Tokenizer, prepared: Prepared, ids: Sequence[Any], encoding: Encoding) -> EncodedChunk:
    """Return the tokens of a chunk, given the `ids` of its texts and parts."""
    documents, texts, parts, faults, short = prepared
    eod = tokenizer.eod if encoding.append_eod else None
    return EncodedChunk(
        _assembled(documents, ids, eod, token_dtype(tokenizer.vocab_size)),
        faults,
        short,
        digests_of(documents) if encoding.cleaning.drop_duplicates else [],
        sum(map(bool, texts)),
        comparisons_of(parts, ids[: len(texts)], ids[len(texts) :]),
    )


def _assembled(
    documents: Sequence[Sequence[str]], ids: Sequence[Any], eod: int | None, dtype: np.dtype[Any]
) -> Encoded:
    remaining = iter(ids)
    end = [] if eod is None else [np.array([eod], dtype)]
    parts: list[Any] = []
    lengths: list[int] = []
    sequences = np.zeros(len(documents), np.int64)
    for number, document in enumerate(documents):
        kept = [sentence for sentence in (next(remaining) for _ in document) if len(sentence)]
        if kept:
            parts += kept + end
            lengths += map(len, kept)
            lengths[-1] += len(end)
            sequences[number] = len(kept)
    return Encoded(_joined(parts, dtype), np.array(lengths, "<i4"), sequences)


def _joined(parts: list[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    # The dtype was chosen by the vocabulary's size, so it holds every id.
    return np.concatenate(parts, dtype=dtype, casting="unsafe") if parts else np.zeros(0, dtype)
