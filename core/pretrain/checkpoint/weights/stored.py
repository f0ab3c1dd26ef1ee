"""Tensors in files of torch.save and of safetensors, read from their place without the rest of the file."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from typing import IO, TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from pretrain.checkpoint.formats import torch_file
from pretrain.checkpoint.weights.file_part import FilePart
from pretrain.checkpoint.weights.lazy_tensor import LazyTensor, bytes_of, in_memory
from pretrain.errors import DamageError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

_LOCAL_HEADER = struct.Struct("<26xHH")
"""A zip entry's header before its name, extra field and data: its last two numbers are the lengths of those two."""

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""safetensors' names of the dtypes that published models have."""


def stored_at(path: Path, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> LazyTensor:
    """Return a contiguous tensor at a place of a file, as the host's byte order has it.

    Raises:
        DamageError: while it is read, if the file ends before it.
    """
    row = dtype.itemsize
    for size in shape[1:]:
        row *= size

    def rows(begin: int, end: int) -> Tensor:
        values = torch.empty((end - begin, *shape[1:]), dtype=dtype)
        _read_into(path, bytes_of(values), offset + begin * row)
        return values

    return LazyTensor(shape, dtype, rows)


def torch_file_tensors(path: Path) -> Any:
    """Return what a file of torch.save holds, with a LazyTensor for every tensor; nothing in it is executed.

    Files in the format of before torch 1.6 are read whole.

    Raises:
        CheckpointError: it holds objects that could run code.
        DamageError: it is cut off, not a file of torch.save, or a tensor is larger than its place in the file.
    """
    if not zipfile.is_zipfile(path):
        return _lazy(torch_file.read(path), path, {}, set())
    with FakeTensorMode():
        content = torch_file.read(path)
    with path.open("rb") as file:
        return _lazy(content, path, _records(file, 0), set())


def embedded_tensor(path: Path, offset: int, length: int, shape: tuple[int, ...], dtype: torch.dtype) -> LazyTensor:
    """Return a tensor that torch.save has written into a part of a file; that part is looked at when it is read.

    Args:
        path: the file.
        offset: place of the part in bytes.
        length: of the part in bytes.
        shape: that the tensor must have.
        dtype: that it must have.

    Raises:
        DamageError: while it is read, if the part holds something else.
    """
    found: list[LazyTensor] = []

    def rows(begin: int, end: int) -> Tensor:
        if not found:
            found.append(_embedded(path, offset, length))
            if (found[0].shape, found[0].dtype) != (shape, dtype):
                msg = f"{path} is damaged: a tensor in it is not the one that its index names.\nCopy it again."
                raise DamageError(msg)
        return found[0].rows(begin, end)

    return LazyTensor(shape, dtype, rows)


def _embedded(path: Path, offset: int, length: int) -> LazyTensor:
    with io.BufferedReader(FilePart(path, offset, length)) as part:
        with FakeTensorMode():
            content = torch_file.read_part(part, path)
        tensor = (
            _lazy_tensor(content, path, _records(part, offset), offset) if isinstance(content, FakeTensor) else None
        )
    if not isinstance(tensor, LazyTensor):
        msg = f"{path} is damaged: it holds no tensor where its index names one.\nCopy it again."
        raise DamageError(msg)
    return tensor


def safetensors_tensors(path: Path) -> dict[str, LazyTensor]:
    """Return the tensors of a file of safetensors by their names.

    Raises:
        DamageError: it is cut off, or not such a file, or has a dtype that no model of ours has.
    """
    try:
        with safe_open(path, framework="pt"):
            pass  # safetensors checks the header: sizes, overlaps, the length of the file
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length))
    except (SafetensorError, OSError, ValueError) as error:
        msg = f"{path} is damaged, or no safetensors file: {str(error)[:200]}"
        raise DamageError(msg) from error
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _DTYPES:
            msg = f"{path}: {name[:100]} has dtype {entry['dtype']}; {', '.join(_DTYPES)} are read."
            raise DamageError(msg)
        place = 8 + length + entry["data_offsets"][0]
        found[name] = stored_at(path, place, tuple(entry["shape"]), _DTYPES[entry["dtype"]])
    return found


def _read_into(path: Path, view: memoryview, offset: int) -> None:
    """Fill bytes from a place of the file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        done = 0
        while done < len(view):
            count = os.preadv(descriptor, [view[done:]], offset + done)
            if count == 0:
                msg = f"{path} is cut off: it ends before byte {offset + len(view)}.\nCopy it again."
                raise DamageError(msg)
            done += count
    finally:
        os.close(descriptor)


def _lazy(content: Any, path: Path, records: dict[int, int], above: set[int]) -> Any:
    """Replace the tensors in nested dicts, lists and tuples."""
    if isinstance(content, torch.Tensor):
        return _lazy_tensor(content, path, records)
    if id(content) in above:
        msg = f"{path} is damaged: a value in it contains itself.\nCopy it again."
        raise DamageError(msg)
    inside = above | {id(content)}
    if isinstance(content, dict):
        return {key: _lazy(value, path, records, inside) for key, value in content.items()}
    if type(content) in {list, tuple}:
        return type(content)(_lazy(value, path, records, inside) for value in content)
    return content


def _lazy_tensor(tensor: Tensor, path: Path, records: dict[int, int], base: int = 0) -> LazyTensor | Tensor:
    """Return a fake tensor's place in the file; `base` is that of the part that torch has read, in bytes."""
    if not isinstance(tensor, FakeTensor):
        return in_memory(tensor.detach()) if tensor.dim() else tensor
    shape, strides, start = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    if 0 in shape:
        return in_memory(torch.empty(shape, dtype=tensor.dtype))
    place = base + getattr(tensor.untyped_storage(), "_checkpoint_offset", -1)
    count = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    if (start + count) * tensor.element_size() > records.get(place, 0):
        msg = f"{path} is damaged: a tensor of shape {list(shape)} is larger than its place in it.\nCopy it again."
        raise DamageError(msg)
    first = place + start * tensor.element_size()
    if tensor.dim() == 0:
        return stored_at(path, first, (1,), tensor.dtype).whole()[0]  # a count or a scale, no weight
    if tensor.is_contiguous():
        return stored_at(path, first, shape, tensor.dtype)
    flat = stored_at(path, first, (count,), tensor.dtype)
    return LazyTensor(
        shape, tensor.dtype, lambda begin, end: flat.whole().as_strided(shape, strides)[begin:end], by_rows=False
    )


def _records(file: IO[bytes], base: int) -> dict[int, int]:
    """Return the place of every entry's data in a zip file, and its length in bytes; places count from `base`."""
    places = {}
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            file.seek(entry.header_offset)
            name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            places[base + entry.header_offset + _LOCAL_HEADER.size + name + extra] = entry.file_size
    return places
