"""Build Megatron's token files from a corpus, byte for byte as its preprocess_data.py writes them."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from pretrain.atomic_files import refuse_existing
from pretrain.data.prefetch import prefetched
from pretrain.data.token_files.fingerprint import fingerprint_path, write_fingerprint
from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.data.token_files.writing import token_dtype
from pretrain.data.tokenizers import load_encoder
from pretrain.errors import DataError
from pretrain.tools.corpus.chunks import CHUNK_BYTES, START
from pretrain.tools.corpus.cleaning import NO_CLEANING, text_fixer
from pretrain.tools.corpus.encoding import Encoding
from pretrain.tools.corpus.encoding_check import ReferenceComparison
from pretrain.tools.corpus.encoding_pool import encoded_chunks
from pretrain.tools.corpus.growing_files import GrowingFiles
from pretrain.tools.corpus.sharding import corpus_digest
from pretrain.tools.corpus.sources.inputs import find_sources
from pretrain.tools.corpus.sources.reading import read_chunks
from pretrain.tools.corpus.unfinished import INDEX, NOTHING_COUNTED, TOKENS, folder_of, is_finished, unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from pathlib import Path

    from pretrain.data.token_files.writing import Written
    from pretrain.data.tokenizers import Tokenizer
    from pretrain.data.tokenizers.files import NamesTokenizer
    from pretrain.tools.corpus.chunks import Chunk, Place
    from pretrain.tools.corpus.cleaning import Cleaning
    from pretrain.tools.corpus.encoding import EncodedChunk
    from pretrain.tools.corpus.sharding import Shard
    from pretrain.tools.corpus.sources.inputs import Source
    from pretrain.tools.corpus.unfinished import Counts, State, Unfinished


_DECOMPRESSED_RATIO = 10
"""Upper estimate of the decompressed bytes per compressed byte."""
_SMALL = 1 << 17
"""Corpus size in bytes below which `tokenizers` is faster: gigatoken needs 0.1 s to read GPT-2's vocabulary."""


@dataclass(frozen=True, slots=True)
class Built:
    """Result of a build.

    Attributes:
        documents: number of documents, empty ones included.
        sequences: number of sequences.
        tokens: number of tokens.
        token_bytes: bytes of one token.
        counts: documents that were left out.
        compared: number of texts for which the reference tokenizer gave the same tokens; None if it encoded all texts.
        texts: number of non-empty texts; None likewise.
    """

    documents: int
    sequences: int
    tokens: int
    token_bytes: int
    counts: Counts = NOTHING_COUNTED
    compared: int | None = None
    texts: int | None = None


class Progress(NamedTuple):
    """Progress of a build.

    Attributes:
        read: bytes on disk read so far.
        total: bytes on disk of all inputs.
        written: documents and tokens, those before an interruption included.
        continued: True if this build continues an interrupted one.
    """

    read: int
    total: int
    written: Written
    continued: bool


def build_tokens(
    inputs: Sequence[Path],
    prefix: Path,
    section: NamesTokenizer,
    *,
    json_key: str = "text",
    append_eod: bool = False,
    skip_faults: bool = False,
    cleaning: Cleaning = NO_CLEANING,
    shard: Shard | None = None,
    workers: int = 1,
    reference_only: bool = False,
    force: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Built:
    """Encode documents into `prefix`.bin and `prefix`.idx, in the order of the inputs.

    The bytes do not depend on `workers`, nor on interruptions: until they are complete the files grow in the folder
    `prefix`.partial, and the same call continues from there. A small file beside them identifies the tokenizer. As in
    Megatron, a document without a token has no sequence, but is counted.

    Args:
        inputs: files, folders and patterns, see `find_sources`.
        prefix: path without .bin and .idx.
        section: the tokenizer's files.
        json_key: the key, or of a table the column, that holds the text: a string, or a list of strings, each of which
            becomes a sequence.
        append_eod: end every document with the tokenizer's end-of-document token.
        skip_faults: leave out and count malformed lines, instead of raising.
        cleaning: applied to the texts before they are encoded.
        shard: build only this part of the inputs.
        workers: threads or processes that encode; 1 encodes in this thread.
        reference_only: encode everything with the `tokenizers` library, not only a sample; a small corpus always is.
        force: replace existing files, and discard an interrupted build with other settings.
        progress: called after each chunk that is written.

    Raises:
        DataError: an input, the tokenizer or an output file cannot be used, the output is in an input folder, or there
            is no text.
    """
    encoding = Encoding(json_key, append_eod, skip_faults, cleaning)
    if not is_finished(prefix):
        refuse_existing([idx_path(prefix), bin_path(prefix)], force=force)
    sources, corpus = _sources(inputs, folder_of(prefix), shard, encoding)
    size = _decompressed_size(sources)
    encoder = load_encoder(section, reference_only=reference_only or size <= _SMALL)
    with unfinished(prefix, _settings(sources, encoding, encoder.tokenizer), force=force) as work:
        dtype = token_dtype(encoder.tokenizer.vocab_size)
        if not work.state.finished:
            sample = ReferenceComparison(encoder.reference) if encoder.reference else None
            growing = GrowingFiles(work, sample, cleaning)
            busy = min(workers, 1 + size // CHUNK_BYTES)  # a process takes longer to start than a chunk to encode
            chunks = _chunks(sources, json_key, work.state.place, busy)
            with closing(chunks), closing(encoded_chunks(chunks, section, encoder, encoding, busy)) as stream:
                _write(stream, growing, sources, progress, continued=work.state.place != START)
            _check_not_empty(growing.written, inputs, shard)
            growing.finish(dtype)
        _publish(work, prefix, encoder.tokenizer, corpus)
    return _built(work.state, dtype.itemsize)


def _chunks(sources: Sequence[Source], json_key: str, begin: Place, workers: int) -> Generator[Chunk]:
    chunks = read_chunks(sources, json_key, begin)
    return prefetched(chunks) if workers > 1 and any(source.compressed for source in sources) else chunks


def _built(state: State, token_bytes: int) -> Built:
    compared = (state.counts.compared, state.counts.texts) if state.counts.texts else (None, None)
    return Built(*state.written, token_bytes, state.counts, *compared)


def _sources(
    inputs: Sequence[Path], output: Path, shard: Shard | None, encoding: Encoding
) -> tuple[list[Source], str | None]:
    """Return the sources, and for a shard the digest of the whole corpus."""
    if encoding.cleaning.fix_text:
        text_fixer()  # raises early if ftfy is missing
    sources = find_sources(inputs, output=output)
    if shard is None:
        return sources, None
    if encoding.cleaning.drop_duplicates:
        msg = "a shard does not know the others' documents, so duplicates cannot be dropped.\nBuild without --shard."
        raise DataError(msg)
    return shard.of(sources), corpus_digest(sources, encoding.json_key, encoding.append_eod, encoding.cleaning)


def _decompressed_size(sources: Sequence[Source]) -> int:
    """Return the approximate size of the text in bytes, after decompression."""
    return sum((source.end - source.begin) * (_DECOMPRESSED_RATIO if source.compressed else 1) for source in sources)


def _settings(sources: Sequence[Source], encoding: Encoding, tokenizer: Tokenizer) -> dict[str, str]:
    """Return everything that the output bytes depend on. A file that has changed meanwhile is another input."""
    digest = hashlib.sha256()
    for source in sources:
        changed = source.path.stat().st_mtime_ns
        facts = (source.path, source.kind, source.size, changed, source.begin, source.end)
        digest.update("".join(f"{fact}\0" for fact in facts).encode(errors="surrogateescape"))
    return {
        "inputs": digest.hexdigest(),
        "tokenizer": tokenizer.fingerprint,
        "json_key": encoding.json_key,
        "append_eod": str(encoding.append_eod),
        "cleaning": str(encoding.cleaning),
    }


def _write(
    stream: Iterable[tuple[Chunk, EncodedChunk]],
    growing: GrowingFiles,
    sources: Sequence[Source],
    progress: Callable[[Progress], None],
    *,
    continued: bool,
) -> None:
    total = sum(source.end - source.begin for source in sources)
    before = list(accumulate((source.end - source.begin for source in sources), initial=0))
    for chunk, encoded in stream:
        growing.add(chunk, encoded)
        read = before[chunk.source] + chunk.position - sources[chunk.source].begin
        progress(Progress(min(read, total), total, growing.written, continued))


def _check_not_empty(written: Written, inputs: Sequence[Path], shard: Shard | None) -> None:
    if not written.tokens and shard is None:  # a shard may be empty
        msg = f"{', '.join(map(str, inputs))}: no text found, so there is nothing to train on."
        raise DataError(msg)


def _publish(work: Unfinished, prefix: Path, tokenizer: Tokenizer, corpus: str | None) -> None:
    """Move the finished files to their names. The index comes last: if it exists, everything does."""
    with work.writing():
        if (work.folder / TOKENS).exists():  # not after a crash between the two names
            idx_path(prefix).unlink(missing_ok=True)  # an older one must not describe the new ids for a moment
            (work.folder / TOKENS).replace(bin_path(prefix))
        write_fingerprint(fingerprint_path(prefix), tokenizer, corpus)
        (work.folder / INDEX).replace(idx_path(prefix))
    work.discard()
