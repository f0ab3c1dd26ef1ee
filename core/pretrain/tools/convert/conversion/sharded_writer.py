"""Files of a sharded checkpoint (torch.distributed.checkpoint), and their index."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from pretrain.checkpoint.digest import Recorder
from pretrain.checkpoint.sharded_format import INDEX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

    from pretrain.tools.convert.weights.lazy_tensor import LazyTensor

_PIECE = 16 << 20
"""Bytes of a tensor that are written as one piece, of which the index has an entry."""

BACKEND = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
"""Content of metadata.json (CheckpointingConfig of megatron-core)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole tensor under a key, or one place of the key's first dimension.

    Attributes:
        key: in the checkpoint.
        place: in the first dimension; None: the tensor is all that the key has.
        count: size of that dimension.
        tensor: the numbers.
    """

    key: str
    place: int | None
    count: int
    tensor: LazyTensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all that the key has."""
        return self.tensor.shape if self.place is None else (self.count, *self.tensor.shape)


@dataclass(frozen=True, slots=True)
class ShardedFile:
    """A file of tensors, each in blocks that torch.save writes one after the other.

    Attributes:
        name: path inside the target.
        entries: tensors in it.
        empty: keys of states without content, which megatron-core expects beside its layers' weights.
    """

    name: str
    entries: tuple[Entry, ...]
    empty: tuple[str, ...] = field(default=())

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
    """Write the index of the tensors.

    Args:
        folder: of the checkpoint.
        entries: of all files.
        written: by name, what writing each file returned.
    """
    from torch.distributed.checkpoint.filesystem import _StorageInfo  # noqa: PLC0415  half a second that others are spared
    from torch.distributed.checkpoint.metadata import (  # noqa: PLC0415
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    chunks: dict[str, list[ChunkStorageMetadata]] = {}
    storage: dict[MetadataIndex, Any] = {}
    described: dict[str, Any] = {}
    for name, file in written.items():
        for key, offsets, sizes, begin, length in file["places"]:
            if offsets is None:
                storage[MetadataIndex(key)] = _StorageInfo(name, begin, length)
                described[key] = BytesStorageMetadata()
                continue
            storage[MetadataIndex(key, torch.Size(offsets))] = _StorageInfo(name, begin, length)
            chunks.setdefault(key, []).append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
    for entry in entries:
        described[entry.key] = TensorStorageMetadata(
            TensorProperties(dtype=entry.tensor.dtype), torch.Size(entry.shape), chunks[entry.key]
        )
    index = Metadata(state_dict_metadata=described, storage_data=storage)
    with (folder / INDEX).open("wb") as file:
        pickle.dump(index, file)
        file.flush()
        os.fsync(file.fileno())


def backend_json() -> bytes:
    """Return the content of metadata.json."""
    return json.dumps(BACKEND).encode()
