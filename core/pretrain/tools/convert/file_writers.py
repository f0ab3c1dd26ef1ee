"""Files of torch.save, safetensors (its README, Format) and torch.distributed.checkpoint, written block by block."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
import zlib
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.serialization import skip_data

from pretrain.checkpoint.checksums import Recorder, file_digest
from pretrain.checkpoint.sharded_format import INDEX
from pretrain.checkpoint.torch_file import data_place
from pretrain.errors import CheckpointError
from pretrain.tools.convert.lazy_tensor import LazyTensor, bytes_of
from pretrain.tools.convert.target import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

_DESCRIPTOR = b"PK\x07\x08"  # signature of the record after an entry's data that holds its checksum
_CRC_OF_DIRECTORY = 16  # place of the checksum in an entry of the zip's directory (APPNOTE.TXT 4.3.12)
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_ALIGNMENT = 8  # the header is filled with spaces up to a multiple of so many bytes, as safetensors' own writer does
_PIECE = 16 << 20  # bytes of a tensor that are written as one piece, of which the index has an entry


@dataclass(frozen=True, slots=True)
class TorchFile:
    """A file of torch.save."""

    name: str  # path inside the target
    content: Any  # nested dicts, lists and tuples with a LazyTensor for each tensor

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in it."""
        return sum(tensor.nbytes for tensor in tensors_in(self.content))

    def write(self, path: Path, written: Callable[[int], None]) -> dict[str, Any]:
        """Write a skeleton, then each tensor into its place; return digest and size, for which it is read once more."""
        with FakeTensorMode():
            skeleton = _without_data(self.content)
        with skip_data(materialize_fake_tensors=True):
            torch.save(skeleton, path)
        places, directory = _places(path)
        with path.open("r+b") as file:
            checksums = {}
            for number, tensor in enumerate(tensors_in(self.content)):  # torch numbers storages as it meets them
                file.seek(places[number])
                checksums[number] = _write_with_checksum(file, tensor, written)
            _set_checksums(file, places, directory, checksums, [t.nbytes for t in tensors_in(self.content)])
            file.flush()
            os.fsync(file.fileno())
        return asdict(file_digest(path))


def _write_with_checksum(file: Any, tensor: LazyTensor, written: Callable[[int], None]) -> int:
    """Write a tensor's bytes; return their CRC-32."""
    checksum = 0
    for data in map(bytes_of, tensor.blocks()):
        file.write(data)
        checksum = zlib.crc32(data, checksum)
        written(len(data))
    return checksum


def _without_data(content: Any) -> Any:
    if isinstance(content, LazyTensor):
        return torch.empty(content.shape, dtype=content.dtype)
    if isinstance(content, dict):
        return type(content)((key, _without_data(value)) for key, value in content.items())
    if isinstance(content, list | tuple):
        return type(content)(_without_data(value) for value in content)
    return content


def _places(path: Path) -> tuple[dict[int, int], dict[int, int]]:
    """Return for each storage's number the place of its data, and of its entry in the zip's directory."""
    places, directory = {}, {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        entry_place = archive.start_dir
        for entry in archive.infolist():
            folder, _, number = entry.filename.rpartition("/")
            if folder.endswith("/data") and number.isdecimal():
                places[int(number)] = data_place(file, entry)
                directory[int(number)] = entry_place
            entry_place += 46 + len(entry.orig_filename.encode()) + len(entry.extra) + len(entry.comment)
    return places, directory


def _set_checksums(
    file: IO[bytes], places: dict[int, int], directory: dict[int, int], checksums: dict[int, int], sizes: list[int]
) -> None:
    """Write the checksums that torch has left out: into the directory, and behind each storage's data."""
    for number, checksum in checksums.items():
        data = struct.pack("<I", checksum)
        file.seek(directory[number] + _CRC_OF_DIRECTORY)
        file.write(data)
        file.seek(places[number] + sizes[number])
        if file.read(4) == _DESCRIPTOR:
            file.seek(places[number] + sizes[number] + 4)
            file.write(data)


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A file of safetensors."""

    name: str  # path inside the target
    tensors: Mapping[str, LazyTensor]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in it."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def write(self, path: Path, written: Callable[[int], None]) -> dict[str, Any]:
        """Write the file; return its digest and size."""
        recorder = Recorder()
        with recorder.open(path, "wb") as file:
            file.write(self._header())
            for tensor in self.tensors.values():
                for data in map(bytes_of, tensor.blocks()):
                    file.write(data)
                    written(len(data))
            file.flush()
            os.fsync(file.fileno())
        return asdict(recorder.files[path.name])

    def _header(self) -> bytes:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        place = 0
        for name, tensor in self.tensors.items():
            if tensor.dtype not in _DTYPES:
                msg = f"{name} has dtype {tensor.dtype}, which safetensors models do not have.\nPass --dtype."
                raise CheckpointError(msg)
            header[name] = {
                "dtype": _DTYPES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [place, place + tensor.nbytes],
            }
            place += tensor.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        return len(text).to_bytes(8, "little") + text


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole tensor under a key, or one place of the key's first dimension."""

    key: str
    place: int | None  # in the first dimension; None: the tensor is all that the key has
    count: int  # size of that dimension
    tensor: LazyTensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all that the key has."""
        return self.tensor.shape if self.place is None else (self.count, *self.tensor.shape)


@dataclass(frozen=True, slots=True)
class ShardedFile:
    """A file of tensors, each in blocks that torch.save writes one after the other."""

    name: str  # path inside the target
    entries: tuple[Entry, ...]
    empty: tuple[str, ...] = ()  # keys of states without content, which megatron-core expects beside layers' weights

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in it."""
        return sum(entry.tensor.nbytes for entry in self.entries)

    def write(self, path: Path, written: Callable[[int], None]) -> dict[str, Any]:
        """Write the file; return its digest and the places of its blocks for the index."""
        recorder = Recorder()
        places: list[Any] = []
        with recorder.open(path, "wb") as opened:
            file: Any = opened  # what torch.save needs of a file
            for key in self.empty:
                begin = file.tell()
                torch.save([None], file)
                places.append([key, None, None, begin, file.tell() - begin])
            for entry in self.entries:
                first = 0
                for block in entry.tensor.blocks(_PIECE):
                    begin = file.tell()
                    stacked = block if entry.place is None else block.unsqueeze(0)
                    torch.save(stacked.clone() if stacked.untyped_storage().nbytes() > block.nbytes else stacked, file)
                    offsets = [first] + [0] * (block.dim() - 1)
                    whole = offsets if entry.place is None else [entry.place, *offsets]
                    places.append([entry.key, whole, list(stacked.shape), begin, file.tell() - begin])
                    first += block.shape[0]
                    written(block.nbytes)
            file.flush()
            os.fsync(file.fileno())
        return {"places": places, **asdict(recorder.files[path.name])}


def write_index(folder: Path, entries: Iterable[Entry], written: Mapping[str, Any]) -> None:
    """Write the index of the tensors."""
    from torch.distributed.checkpoint import metadata  # noqa: PLC0415  half a second that others are spared
    from torch.distributed.checkpoint.filesystem import _StorageInfo  # noqa: PLC0415

    chunks: dict[str, list[ChunkStorageMetadata]] = {}
    storage: dict[MetadataIndex, Any] = {}
    described: dict[str, Any] = {}
    for name, file in written.items():
        for key, offsets, sizes, begin, length in file["places"]:
            if offsets is None:
                storage[metadata.MetadataIndex(key)] = _StorageInfo(name, begin, length)
                described[key] = metadata.BytesStorageMetadata()
                continue
            storage[metadata.MetadataIndex(key, torch.Size(offsets))] = _StorageInfo(name, begin, length)
            chunk = metadata.ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
            chunks.setdefault(key, []).append(chunk)
    for entry in entries:
        properties = metadata.TensorProperties(dtype=entry.tensor.dtype)
        described[entry.key] = metadata.TensorStorageMetadata(properties, torch.Size(entry.shape), chunks[entry.key])
    index = metadata.Metadata(state_dict_metadata=described, storage_data=storage)
    with (folder / INDEX).open("wb") as file:
        pickle.dump(index, file)
        file.flush()
        os.fsync(file.fileno())
