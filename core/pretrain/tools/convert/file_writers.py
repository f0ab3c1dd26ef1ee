"""Files of torch.save and of safetensors (its README, Format), written block by block."""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.serialization import skip_data

from pretrain.checkpoint.checksums import Recorder, file_digest
from pretrain.checkpoint.torch_file import data_place
from pretrain.errors import CheckpointError
from pretrain.tools.convert.lazy_tensor import LazyTensor, bytes_of
from pretrain.tools.convert.target import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


_DESCRIPTOR = b"PK\x07\x08"
"""Signature of the record after an entry's data that holds its checksum."""

_CRC_OF_DIRECTORY = 16
"""Place of the checksum in an entry of the zip's directory (APPNOTE.TXT 4.3.12)."""


@dataclass(frozen=True, slots=True)
class TorchFile:
    """A file of torch.save.

    Attributes:
        name: path inside the target.
        content: nested dicts, lists and tuples with a LazyTensor for each tensor.
    """

    name: str
    content: Any

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in it."""
        return sum(tensor.nbytes for tensor in tensors_in(self.content))

    def write(self, path: Path, written: Callable[[int], None]) -> dict[str, Any]:
        """Write the file: first its skeleton with room for the tensors, then each tensor into its place.

        Return its digest and size, for which it is read once more: it was not written in the order of its bytes.
        """
        with FakeTensorMode():
            skeleton = _without_data(self.content)
        with skip_data(materialize_fake_tensors=True):
            torch.save(skeleton, path)
        places, directory = _places(path)
        with path.open("r+b") as file:
            checksums = {}
            for number, tensor in enumerate(tensors_in(self.content)):  # torch numbers storages as it meets them
                checksums[number] = write_at(file, places[number], tensor, written)
            _set_checksums(file, places, directory, checksums, [t.nbytes for t in tensors_in(self.content)])
            file.flush()
            os.fsync(file.fileno())
        return asdict(file_digest(path))


def write_at(file: IO[bytes], place: int, tensor: LazyTensor, written: Callable[[int], None]) -> int:
    """Write a tensor's bytes at a place of a file; return their CRC-32."""
    checksum = 0
    file.seek(place)
    for block in tensor.blocks():
        data = bytes_of(block)
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


_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_ALIGNMENT = 8
"""The header is filled with spaces up to a multiple of so many bytes, as safetensors' own writer does."""


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A file of safetensors.

    Attributes:
        name: path inside the target.
        tensors: by name.
    """

    name: str
    tensors: Mapping[str, LazyTensor]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in it."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def write(self, path: Path, written: Callable[[int], None]) -> dict[str, Any]:
        """Write the file; return its digest and size.

        Raises:
            CheckpointError: a tensor has a dtype that weights do not have.
        """
        recorder = Recorder()
        with recorder.open(path, "wb") as file:
            file.write(self._header())
            for tensor in self.tensors.values():
                for block in tensor.blocks():
                    data = bytes_of(block)
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
