"""Build Megatron's token files from a corpus, byte for byte as its preprocess_data.py writes them."""

from __future__ import annotations

import hashlib
import os
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from pretrain.atomic_files import refuse_existing
from pretrain.data.prefetch import prefetched
from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.data.token_files.tokenizer_stamp import stamp_path, write_stamp
from pretrain.data.token_files.writing import IndexPart, TokenWriter, token_dtype, write_all, write_index
from pretrain.data.tokenizers.tokenizer import end_token
from pretrain.errors import DataError
from pretrain.tools.corpus.chunks import CHUNK_BYTES, START, read_chunks
from pretrain.tools.corpus.documents import NO_CLEANING, SeenDocuments, select_documents, text_fixer, where
from pretrain.tools.corpus.encoding import Encoding, encoded_chunks, load_encoder
from pretrain.tools.corpus.inputs import corpus_digest, find_sources
from pretrain.tools.corpus.reference_comparison import ReferenceComparison
from pretrain.tools.corpus.unfinished import INDEX, TOKENS, BuildCounts, BuildState, folder_of, is_finished, unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import numpy as np

    from pretrain.data.token_files.writing import Written
    from pretrain.data.tokenizers import Tokenizer
    from pretrain.data.tokenizers.tokenizer import NamesTokenizer
    from pretrain.tools.corpus.chunks import Chunk, InputFile
    from pretrain.tools.corpus.documents import Cleaning
    from pretrain.tools.corpus.encoding import EncodedChunk
    from pretrain.tools.corpus.inputs import Shard
    from pretrain.tools.corpus.unfinished import Unfinished

    _Stream = Iterable[tuple[Chunk, EncodedChunk]]

_DECOMPRESSED_RATIO = 10  # upper estimate of the decompressed bytes per compressed byte
# corpus size in bytes below which `tokenizers` is faster: gigatoken needs 0.1 s to read GPT-2's vocabulary
_SMALL = 1 << 17


@dataclass(frozen=True, slots=True)
class Built:
    """Result of a build."""

    documents: int  # empty ones included
    sequences: int
    tokens: int
    token_bytes: int  # of one token
    counts: BuildCounts = field(default_factory=BuildCounts)


class BuildProgress(NamedTuple):
    """Progress of a build."""

    read: int  # bytes on disk
    total: int
    written: Written  # what was written before an interruption included
    continued: bool  # whether this build continues an interrupted one


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
    progress: Callable[[BuildProgress], None] = lambda _: None,
) -> Built:
    """Encode documents into `prefix`.bin and `prefix`.idx, in the order of the inputs.

    The bytes do not depend on `workers`, nor on interruptions: until they are complete the files grow in the folder
    `prefix`.partial, and the same call continues from there. As in Megatron, a document without a token has no
    sequence, but is counted. Of the `json_key` a list of strings is read as well, each of which becomes a sequence.
    """
    encoding = Encoding(json_key, append_eod, skip_faults, cleaning)
    if not is_finished(prefix):
        refuse_existing([idx_path(prefix), bin_path(prefix)], force=force)
    sources, corpus = _sources(inputs, folder_of(prefix), shard, encoding)
    # approximate size of the text in bytes
    size = sum((each.end - each.begin) * (_DECOMPRESSED_RATIO if each.compressed else 1) for each in sources)
    encoder = load_encoder(section, reference_only=reference_only or size <= _SMALL)
    if append_eod:
        end_token(encoder.tokenizer, "--append-eod")
    with unfinished(prefix, _settings(sources, encoding, encoder.tokenizer), force=force) as work:
        dtype = token_dtype(encoder.tokenizer.vocab_size)
        if not work.state.finished:
            sample = ReferenceComparison(encoder.reference) if encoder.reference else None
            growing = _GrowingFiles(work, sample, cleaning)
            busy = min(workers, 1 + size // CHUNK_BYTES)  # a process takes longer to start than a chunk to encode
            chunks = read_chunks(sources, json_key, work.state.place)
            if busy > 1 and any(source.compressed for source in sources):
                chunks = prefetched(chunks)
            with closing(chunks), closing(encoded_chunks(chunks, section, encoder, encoding, busy)) as stream:
                _write(stream, growing, sources, progress)
            if not growing.written.tokens and shard is None:  # a shard may be empty
                msg = f"{', '.join(map(str, inputs))}: no text found.\nGive inputs that have documents with text."
                raise DataError(msg)
            growing.finish(dtype)
        _publish(work, prefix, encoder.tokenizer, corpus)
    return Built(*work.state.written, dtype.itemsize, work.state.counts)


def _sources(
    inputs: Sequence[Path], output: Path, shard: Shard | None, encoding: Encoding
) -> tuple[list[InputFile], str | None]:
    """Return the sources, and for a shard the digest of the whole corpus."""
    if encoding.cleaning.fix_text:
        text_fixer()  # raises early if ftfy is missing
    sources = find_sources(inputs, output=output)
    if shard is None:
        return sources, None
    if encoding.cleaning.drop_duplicates:
        msg = "--drop-duplicates needs all documents, and a shard reads a part of them.\nBuild without --shard."
        raise DataError(msg)
    return shard.of(sources), corpus_digest(sources, encoding.json_key, encoding.append_eod, encoding.cleaning)


def _settings(sources: Sequence[InputFile], encoding: Encoding, tokenizer: Tokenizer) -> dict[str, str]:
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
    stream: _Stream, growing: _GrowingFiles, sources: Sequence[InputFile], progress: Callable[[BuildProgress], None]
) -> None:
    *before, total = accumulate((source.end - source.begin for source in sources), initial=0)
    for chunk, encoded in stream:
        growing.add(chunk, encoded)
        read = before[chunk.source] + chunk.position - sources[chunk.source].begin
        progress(BuildProgress(min(read, total), total, growing.written, growing.continued))


def _publish(work: Unfinished, prefix: Path, tokenizer: Tokenizer, corpus: str | None) -> None:
    """Move the finished files to their names. The index comes last: if it exists, everything does."""
    with work.writing():
        if (work.folder / TOKENS).exists():  # not after a crash between the two names
            idx_path(prefix).unlink(missing_ok=True)  # an older one must not describe the new ids for a moment
            (work.folder / TOKENS).replace(bin_path(prefix))
        write_stamp(stamp_path(prefix), tokenizer, corpus)
        (work.folder / INDEX).replace(idx_path(prefix))
    work.discard()


class _GrowingFiles:
    """Files of an unfinished build that grow chunk by chunk."""

    def __init__(self, work: Unfinished, sample: ReferenceComparison | None, cleaning: Cleaning) -> None:
        self._work = work
        self._sample = sample
        self.continued = work.state.place != START
        self._seen = SeenDocuments((work.folder / "digests").read_bytes()) if cleaning.drop_duplicates else None
        tokens, lengths, ends, self._digests = work.files.values()
        self._writer = TokenWriter(tokens, lengths, ends, written=work.state.written)

    @property
    def written(self) -> Written:
        return self._writer.written

    def add(self, chunk: Chunk, result: EncodedChunk) -> None:
        compared = texts = 0
        if self._sample is not None:
            texts = result.texts
            try:
                compared = self._sample.check(chunk, result.comparisons)
            except DataError:
                self._work.discard()  # nothing that was written can be trusted
                raise
        encoded, digests = result.encoded, result.digests
        if self._seen is not None:
            new = self._seen.add(digests)
            encoded = select_documents(encoded, new)
            digests = [digest for digest, is_new in zip(digests, new, strict=True) if is_new]
        state = self._work.state
        with self._work.writing():
            self._writer.add(encoded)
            write_all(self._digests, b"".join(digests))
        sizes = {name: os.fstat(file.fileno()).st_size for name, file in self._work.files.items()}
        first = state.counts.first_fault
        if first is None and result.faults.first is not None:
            number, fault = result.faults.first
            first = f"{where(chunk, number)}: {fault}"
        counts = BuildCounts(
            state.counts.faults + result.faults.count,
            first,
            state.counts.short + result.short,
            state.counts.duplicates + len(result.digests) - len(digests),
            state.counts.compared + compared,
            state.counts.texts + texts,
        )
        # One assignment: Ctrl-C can come between any two statements, and the state is saved then.
        self._work.state = BuildState(state.settings, chunk.next, self._writer.written, sizes, counts)
        self._work.save(now=False)

    def finish(self, dtype: np.dtype[Any]) -> None:
        part = IndexPart(self._work.read("lengths", "<i4"), self._work.read("document_ends", "<i8"))
        with self._work.writing(), (self._work.folder / INDEX).open("wb") as stream:
            write_index(stream, dtype, [part])
            stream.flush()
            os.fsync(stream.fileno())
        self._work.state = replace(self._work.state, finished=True)
        self._work.save()
