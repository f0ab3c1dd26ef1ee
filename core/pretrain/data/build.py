"""JSONL to Megatron's token files, byte for byte as its preprocess_data.py writes them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from pretrain.data.documents import read_chunks, texts_of
from pretrain.data.encoding_pool import encode_in_order
from pretrain.data.fingerprint import fingerprint_path, write_fingerprint
from pretrain.data.replacing import refuse_existing, replacing
from pretrain.data.token_file import bin_path, idx_path
from pretrain.data.token_writer import Encoded, TokenWriter, token_dtype
from pretrain.data.tokenizers import load_tokenizer
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pretrain.data.documents import Chunk
    from pretrain.data.tokenizers import Tokenizer
    from pretrain.recipe.sections.tokenizer import TokenizerSection


@dataclass(frozen=True, slots=True)
class Built:
    """What was built: documents (empty ones included), tokens, and bytes of one token."""

    documents: int
    tokens: int
    token_bytes: int


def build_tokens(
    inputs: Sequence[Path],
    prefix: Path,
    section: TokenizerSection,
    *,
    json_key: str = "text",
    append_eod: bool = False,
    workers: int = 1,
    force: bool = False,
    progress: Callable[[Chunk], None] = lambda _: None,
) -> Built:
    """Encode JSONL files into `prefix`.bin and `prefix`.idx, in the order given.

    The bytes do not depend on `workers`. The files appear when they are complete; beside them a small file says with
    which tokenizer they were made. As in Megatron, a document without a token has no sequence, but counts.

    Args:
        inputs: JSONL files, plain or packed as .gz, .xz or .bz2.
        prefix: path without .bin and .idx.
        section: which tokenizer.
        json_key: the key that holds the text: a string, or a list of strings, each of which becomes a sequence.
        append_eod: end every document with the tokenizer's end-of-document token.
        workers: processes that encode; 1 encodes in this process.
        force: replace existing files.
        progress: called with each chunk that is written.

    Raises:
        DataError: an input, the tokenizer or an output file cannot be used; nothing is left behind then.
    """
    refuse_existing([idx_path(prefix), bin_path(prefix)], force=force)
    _check_readable(inputs)
    tokenizer = load_tokenizer(section)
    dtype = token_dtype(tokenizer.vocab_size)
    encode = partial(encode_chunk, json_key=json_key, append_eod=append_eod)
    # The index appears last: where it is, everything is. An older one must not describe the new ids for a moment.
    with replacing(idx_path(prefix)) as idx_file:
        with replacing(bin_path(prefix)) as bin_file:
            writer = TokenWriter(bin_file, dtype)
            with closing(encode_in_order(encode, read_chunks(inputs), section, tokenizer, workers)) as stream:
                for chunk, encoded in stream:
                    writer.add(encoded)
                    progress(chunk)
            _check_not_empty(writer, inputs)
            writer.write_index(idx_file)
            idx_path(prefix).unlink(missing_ok=True)
        write_fingerprint(fingerprint_path(prefix), tokenizer)
    return Built(writer.documents, writer.tokens, dtype.itemsize)


def encode_chunk(tokenizer: Tokenizer, chunk: Chunk, *, json_key: str, append_eod: bool) -> Encoded:
    """Return the tokens of a chunk of JSONL; sentences without a token are left out."""
    documents = texts_of(chunk, json_key)
    ids = iter(tokenizer.encode_batch(list(chain.from_iterable(documents))))
    kept: list[list[int]] = []
    sequences = np.zeros(len(documents), np.int64)
    for number, document in enumerate(documents):
        sentences = [sentence for sentence in (next(ids) for _ in document) if sentence]
        if sentences and append_eod:
            sentences[-1].append(tokenizer.eod)
        kept += sentences
        sequences[number] = len(sentences)
    lengths = np.fromiter(map(len, kept), np.dtype("<i4"), len(kept))
    dtype = token_dtype(tokenizer.vocab_size)
    return Encoded(np.fromiter(chain.from_iterable(kept), dtype, int(lengths.sum(dtype=np.int64))), lengths, sequences)


def _check_readable(inputs: Sequence[Path]) -> None:
    """Find a misspelt name now, not after hours of work on the files before it."""
    for path in inputs:
        if not path.is_file():
            msg = f"{path} does not exist, or is not a file.\nThe inputs are JSONL files; the shell expands patterns."
            raise DataError(msg)


def _check_not_empty(writer: TokenWriter, inputs: Sequence[Path]) -> None:
    if not writer.tokens:
        msg = f"{', '.join(map(str, inputs))}: no text found, so there is nothing to train on."
        raise DataError(msg)
