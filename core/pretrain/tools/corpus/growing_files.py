"""Compare encoded chunks with the reference, drop duplicates, and append the rest to the files of a build."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pretrain.data.token_files.writing import IndexPart, TokenWriter, write_all, write_index
from pretrain.errors import DataError
from pretrain.tools.corpus.cleaning import SeenDocuments, select_documents
from pretrain.tools.corpus.sources.documents import where
from pretrain.tools.corpus.unfinished import INDEX, Counts, State

if TYPE_CHECKING:
    import numpy as np

    from pretrain.data.token_files.writing import Written
    from pretrain.tools.corpus.chunks import Chunk
    from pretrain.tools.corpus.cleaning import Cleaning
    from pretrain.tools.corpus.encoding import EncodedChunk
    from pretrain.tools.corpus.encoding_check import ReferenceComparison
    from pretrain.tools.corpus.sources.documents import Faults
    from pretrain.tools.corpus.unfinished import Unfinished


class GrowingFiles:
    """Files of an unfinished build that grow chunk by chunk."""

    def __init__(self, work: Unfinished, sample: ReferenceComparison | None, cleaning: Cleaning) -> None:
        self._work = work
        self._sample = sample
        self._before = work.state.counts
        self._seen = SeenDocuments(work.read_bytes("digests")) if cleaning.drop_duplicates else None
        tokens, lengths, ends, self._digests = work.files.values()
        self._writer = TokenWriter(tokens, lengths, ends, written=work.state.written)

    @property
    def written(self) -> Written:
        """Amount written so far."""
        return self._writer.written

    def add(self, chunk: Chunk, result: EncodedChunk) -> None:
        """Append an encoded chunk.

        Raises:
            DataError: the reference gives other tokens, or the disk is full.
        """
        self._compare(chunk, result)
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
        counts = Counts(
            state.counts.faults + result.faults.count,
            state.counts.first_fault or _described(chunk, result.faults),
            state.counts.short + result.short,
            state.counts.duplicates + len(result.digests) - len(digests),
            self._before.compared + (self._sample.compared if self._sample else 0),
            self._before.texts + (self._sample.texts if self._sample else 0),
        )
        # One assignment: Ctrl-C can come between any two statements, and the state is saved then.
        self._work.state = State(state.settings, chunk.next, self._writer.written, sizes, counts)
        self._work.save(now=False)

    def finish(self, dtype: np.dtype[Any]) -> None:
        """Write the index of everything.

        Raises:
            DataError: the disk is full.
        """
        part = IndexPart(self._work.read("lengths", "<i4"), self._work.read("document_ends", "<i8"))
        with self._work.writing(), (self._work.folder / INDEX).open("wb") as stream:
            write_index(stream, dtype, [part])
            stream.flush()
            os.fsync(stream.fileno())
        self._work.state = replace(self._work.state, finished=True)
        self._work.save()

    def _compare(self, chunk: Chunk, result: EncodedChunk) -> None:
        if self._sample is not None:
            try:
                self._sample.check(chunk, result)
            except DataError:
                self._work.discard()  # nothing that was written can be trusted
                raise


def _described(chunk: Chunk, faults: Faults) -> str | None:
    if faults.first is None:
        return None
    number, fault = faults.first
    return f"{where(chunk, number)}: {fault}"
