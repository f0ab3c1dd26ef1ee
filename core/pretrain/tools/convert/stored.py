"""Tensors in files of torch.save and of safetensors, read in place without the rest of the file."""

from __future__ import annotations

import io
import json
import math
import os
import threading
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.checkpoint import torch_file
from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.lazy_tensor import LazyTensor, bytes_of, in_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

# safetensors' names of the dtypes that published models have
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_DTYPES |= {"I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}
_DEEPEST = 50  # most levels of nested dicts, lists and tuples in a file
_BLOCK = 1 << 20


def damaged(path: Path, what: str) -> DamageError:
    """Return the error for a file that is not as its program writes it."""
    return DamageError(f"{path} {what}.\nCopy it again.")


@dataclass(slots=True)
class _ZipRecord:
    """A record of a file of torch.save, which may hold several tensors."""

    path: Path
    name: str
    place: int  # of its first byte in the file
    size: int
    crc: int  # CRC-32 that torch.save has noted; 0: none
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def require_intact(self) -> None:
        """Read the record through, the first time that a tensor in it is read."""
        with self._lock:
            if self.crc and self._crc() != self.crc:
                raise damaged(self.path, f"is damaged: the checksum of its record {self.name} does not match")
            self.crc = 0

    def _crc(self) -> int:
        found, done, buffer = 0, 0, memoryview(bytearray(min(_BLOCK, self.size)))
        with _reading(self.path), self.path.open("rb", buffering=0) as file:
            while done < self.size:
                view = buffer[: self.size - done]
                _fill(view, file, self.place + done, self.path)
                found, done = zlib.crc32(view, found), done + len(view)
        return found


def _stored_at(
    path: Path, offset: int, shape: tuple[int, ...], dtype: torch.dtype, record: _ZipRecord | None = None
) -> LazyTensor:
    """Return a contiguous tensor at a place of a file, as the host's byte order has it."""
    row = dtype.itemsize * math.prod(shape[1:])

    def rows(begin: int, end: int) -> Tensor:
        if record is not None:
            record.require_intact()
        values = torch.empty((end - begin, *shape[1:]), dtype=dtype)
        with _reading(path), path.open("rb", buffering=0) as file:
            _fill(bytes_of(values), file, offset + begin * row, path)
        return values

    return LazyTensor(shape, dtype, rows)


def torch_file_tensors(path: Path) -> Any:
    """Return what a file of torch.save holds, with a LazyTensor for every tensor; nothing in it is executed."""
    with _reading(path):
        if not zipfile.is_zipfile(path):  # of before torch 1.6, which is read whole
            return _Lazy(path, {}).of(torch_file.read(path))
        with _without_data():
            content = torch_file.read(path)
        with path.open("rb") as file:
            return _Lazy(path, _records(file, path, 0)).of(content)


@contextmanager
def _without_data() -> Iterator[None]:
    """Have torch.load make meta tensors, whose storages know their places in the file."""
    # Under the mode itself torch 2.9 cannot read tensors with attributes, as DeepSpeed's ZeRO-3 saves them.
    with tracing(TracingContext(FakeTensorMode())):
        yield


def embedded_tensor(path: Path, offset: int, length: int, shape: tuple[int, ...], dtype: torch.dtype) -> LazyTensor:
    """Return a tensor that torch.save has written into a part of a file; that part is looked at when it is read."""
    found: list[LazyTensor] = []

    def rows(begin: int, end: int) -> Tensor:
        if not found:
            found.append(_embedded(path, offset, length))
            if (found[0].shape, found[0].dtype) != (shape, dtype):
                raise damaged(path, "is damaged: a tensor in it is not the one that its index names")
        return found[0].rows(begin, end)

    return LazyTensor(shape, dtype, rows)


def _embedded(path: Path, offset: int, length: int) -> LazyTensor:
    with _reading(path), io.BufferedReader(_FilePart(path, offset, length)) as part:
        with _without_data():
            content = torch_file.read_part(part, path)
        records = _records(part, path, offset)
        tensor = _lazy_tensor(content, path, records, offset) if isinstance(content, torch.Tensor) else None
    if not isinstance(tensor, LazyTensor):
        raise damaged(path, "is damaged: it holds no tensor where its index names one")
    return tensor


def safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return dtype, shape and place of every tensor of a safetensors file by its name, and where the places begin."""
    try:
        with safe_open(path, framework="pt"):
            pass  # safetensors checks the header: sizes, overlaps, the length of the file
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length))
    except (SafetensorError, OSError, ValueError) as error:
        raise damaged(path, f"is damaged or not a safetensors file: {str(error)[:200]}") from error
    header.pop("__metadata__", None)
    return header, 8 + length


def safetensors_tensors(path: Path) -> dict[str, LazyTensor]:
    """Return the tensors of a file of safetensors by their names."""
    header, begin = safetensors_header(path)
    found = {}
    for name, entry in header.items():
        if entry["dtype"] not in _DTYPES:
            msg = f"{path}: {name[:100]} has dtype {entry['dtype']}, not supported (supported: {', '.join(_DTYPES)})."
            raise DamageError(msg)
        place = begin + entry["data_offsets"][0]
        found[name] = _stored_at(path, place, tuple(entry["shape"]), _DTYPES[entry["dtype"]])
    return found


def _fill(view: memoryview, file: IO[bytes], offset: int, path: Path) -> None:
    done = 0
    while done < len(view):
        count = os.preadv(file.fileno(), [view[done:]], offset + done)
        if count == 0:
            raise damaged(path, f"is cut off: it ends before byte {offset + len(view)}")
        done += count


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the file that cannot be read: a bare OSError would be taken for one of the target."""
    try:
        yield
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror or error}.\nCopy it again, then repeat the command."
        raise CheckpointError(msg) from error


class _Lazy:
    """Replaces the tensors in nested dicts, lists and tuples, once for a value that is met several times."""

    def __init__(self, path: Path, records: Mapping[int, _ZipRecord]) -> None:
        self._path, self._records = path, records
        self._done: dict[int, Any] = {}  # by the ids of values, which must be kept meanwhile
        self._above: set[int] = set()

    def of(self, content: Any) -> Any:
        if isinstance(content, torch.Tensor):
            return _lazy_tensor(content, self._path, self._records)
        if not isinstance(content, dict) and type(content) not in {list, tuple}:
            return content
        if id(content) in self._done:
            return self._done[id(content)]
        if id(content) in self._above or len(self._above) == _DEEPEST:
            what = "contains itself" if id(content) in self._above else f"is nested more than {_DEEPEST} levels deep"
            raise damaged(self._path, f"is damaged: a value in it {what}")
        self._above.add(id(content))
        if isinstance(content, dict):
            found: Any = {key: self.of(value) for key, value in content.items()}
        else:
            found = type(content)(self.of(value) for value in content)
        self._above.remove(id(content))
        self._done[id(content)] = found
        return found


def _lazy_tensor(tensor: Tensor, path: Path, records: Mapping[int, _ZipRecord], base: int = 0) -> LazyTensor | Tensor:
    """Return the place of a tensor without data; `base` is that of the part that torch has read, in bytes."""
    shape, strides, start = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    count = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    if 0 not in shape and count < math.prod(shape):  # such as an expanded one, which would be written in full
        raise damaged(path, f"is damaged: numbers of a tensor of shape {list(shape)} share their places")
    if not tensor.is_meta:
        return in_memory(tensor.detach()) if tensor.dim() else tensor
    if 0 in shape:
        return in_memory(torch.empty(shape, dtype=tensor.dtype))
    place = base + getattr(tensor.untyped_storage(), "_checkpoint_offset", -1)
    record = records.get(place)
    if record is None or (start + count) * tensor.element_size() > record.size:
        raise damaged(path, f"is damaged: a tensor of shape {list(shape)} is larger than its place in it")
    first = place + start * tensor.element_size()
    if tensor.dim() == 0:
        return _stored_at(path, first, (1,), tensor.dtype, record).whole()[0]  # a count or a scale, no weight
    if tensor.is_contiguous():
        return _stored_at(path, first, shape, tensor.dtype, record)
    flat = _stored_at(path, first, (count,), tensor.dtype, record)
    return LazyTensor(
        shape, tensor.dtype, lambda begin, end: flat.whole().as_strided(shape, strides)[begin:end], by_rows=False
    )


def _records(file: IO[bytes], path: Path, base: int) -> dict[int, _ZipRecord]:
    """Return the records of a zip file by the place of their data; places count from `base`."""
    records = {}
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            place = base + torch_file.data_place(file, entry)
            records[place] = _ZipRecord(path, entry.filename, place, entry.file_size, entry.CRC)
    return records


class _FilePart(io.RawIOBase):
    """The bytes [offset, offset + length) of a file."""

    def __init__(self, path: Path, offset: int, length: int) -> None:
        self._file = path.open("rb", buffering=0)
        self._offset, self._length, self._place = offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._length - self._place)]
        count = os.preadv(self._file.fileno(), [view], self._offset + self._place) if len(view) else 0
        self._place += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._length}[whence]
        self._place = max(0, start + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def close(self) -> None:
        self._file.close()
        super().close()
