"""Read texts from tables: parquet, and the arrow files of Hugging Face's datasets."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pretrain.errors import DataError
from pretrain.tools.corpus.chunks import Chunk, Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.tools.corpus.sources.inputs import Source

_ROWS = 64
"""Rows that are decoded together: few, because one can be long."""


def read_rows(source: Source, column: str, place: Place, chunk_bytes: int) -> Iterator[Chunk]:
    """Yield the values of one column from row `place.offset` on.

    Raises:
        DataError: pyarrow is missing, the file is damaged, or it has no such column.
    """
    rows = 0
    with _opened(source) as table:
        if column not in table.names:
            given = ", ".join(map(repr, table.names))
            msg = f"{source.path} has no column '{column}'; it has {given}.\nName the text's with --json-key."
            raise DataError(msg)
        for batch in map(_undecoded, table.batches(column)):
            skipped = min(max(place.offset - rows, 0), len(batch))
            rows += skipped
            for values in _parts(batch.slice(skipped), chunk_bytes):
                begin, rows = rows, rows + len(values)
                following = Place(place.source, rows, rows + 1)
                yield Chunk(
                    source.path, begin + 1, values, table.position(rows), source.kind, begin, following, place.source
                )


def _parts(batch: Any, chunk_bytes: int) -> Iterator[list[object]]:
    """Split a batch into lists of about `chunk_bytes`, one row at least."""
    rows = max(1, min(_ROWS, chunk_bytes * len(batch) // max(batch.nbytes, 1)))
    for first in range(0, len(batch), rows):
        yield batch.slice(first, rows).to_pylist()


def _undecoded(batch: Any) -> Any:
    """Return strings as bytes, so that invalid UTF-8 is reported by the parser of documents."""
    import pyarrow as pa  # noqa: PLC0415  an extra

    is_text = pa.types.is_string(batch.type) or pa.types.is_large_string(batch.type)
    return batch.cast(pa.large_binary()) if is_text else batch


class _Parquet:
    def __init__(self, file: Any, size: int) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415  an extra

        self._table = pq.ParquetFile(file, pre_buffer=False)
        self._size = size
        self.names: list[str] = self._table.schema_arrow.names

    def batches(self, column: str) -> Iterator[Any]:
        for batch in self._table.iter_batches(_ROWS, columns=[column], use_threads=False):
            yield batch.column(0)

    def position(self, row: int) -> int:
        """Return the approximate number of bytes read."""
        return int(self._size * row // max(self._table.metadata.num_rows, 1))


class _Arrow:
    """A stream of batches, as Hugging Face's datasets write it."""

    def __init__(self, file: Any) -> None:
        import pyarrow as pa  # noqa: PLC0415  an extra

        self._file = file
        self._stream = pa.ipc.open_stream(file)
        self.names: list[str] = self._stream.schema.names

    def batches(self, column: str) -> Iterator[Any]:
        place = self.names.index(column)
        for batch in self._stream:
            yield batch.column(place)

    def position(self, row: int) -> int:  # noqa: ARG002  a stream does not know its number of rows
        """Return the number of bytes read."""
        return int(self._file.tell())


@contextmanager
def _opened(source: Source) -> Iterator[_Parquet | _Arrow]:
    try:
        import pyarrow as pa  # noqa: PLC0415
    except ImportError as exc:
        msg = f"{source.path} is read by pyarrow, which is not installed.\nInstall it: pip install 'pretrain[data]'"
        raise DataError(msg) from exc
    try:
        with pa.memory_map(str(source.path)) as file:
            yield _Parquet(file, source.size) if source.kind == "parquet" else _Arrow(file)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as exc:
        msg = f"{source.path} cannot be read as {source.kind}: {exc}.\nIs it complete, and is it what its suffix says?"
        raise DataError(msg) from exc
