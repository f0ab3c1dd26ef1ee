"""Tensors of a sharded checkpoint, read whole, many at a time."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from pretrain.checkpoint.formats.sharded import index_of

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor
    from torch.distributed.checkpoint.metadata import Metadata

AT_ONCE = 1 << 30
"""Bytes of a checkpoint up to which all of its tensors are read at once and kept."""

_KEPT = 4
"""Tensors of a larger one that are kept: a weight, its main weight and both moments, whose layers are read in turn."""


class StoredTensors:
    """The tensors of one folder by their keys."""

    def __init__(self, folder: Path) -> None:
        """Read the index.

        Raises:
            CheckpointError: it is missing.
            DamageError: it is damaged.
        """
        self._folder, self._index = folder, index_of(folder)
        entries = self._index.state_dict_metadata.items()
        self._entries = {key: entry for key, entry in entries if isinstance(entry, TensorStorageMetadata)}
        self._kept: dict[str, Tensor] = {}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor by its key."""
        return {key: tuple(entry.size) for key, entry in self._entries.items()}

    def __getitem__(self, key: str) -> Tensor:
        if key not in self._kept:
            sizes = (entry.size.numel() * (entry.properties.dtype.itemsize) for entry in self._entries.values())
            if sum(sizes) <= AT_ONCE:
                self._kept = self._read(list(self._entries))
            else:
                if len(self._kept) == _KEPT:
                    del self._kept[next(iter(self._kept))]  # the one that was read first
                self._kept |= self._read([key])
        return self._kept[key]

    def _read(self, keys: list[str]) -> dict[str, Tensor]:
        tensors = {key: torch.empty(self._entries[key].size, dtype=self._entries[key].properties.dtype) for key in keys}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # meant: a single process reads
            load(tensors, storage_reader=_Reader(self._folder, self._index), no_dist=True)
        return tensors


class _Reader(FileSystemReader):
    """torch's reader, with an index that is read already, and executes nothing."""

    def __init__(self, folder: Path, index: Metadata) -> None:
        super().__init__(folder)
        self._read_already = index

    def read_metadata(self) -> Metadata:
        return self._read_already
