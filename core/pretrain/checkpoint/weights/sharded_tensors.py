"""Tensors of a sharded checkpoint (torch.distributed.checkpoint): each in pieces that lie in several files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pretrain.checkpoint.weights.lazy_tensor import LazyTensor
from pretrain.checkpoint.weights.stored import embedded_tensor
from pretrain.errors import DamageError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor
    from torch.distributed.checkpoint.metadata import Metadata


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a tensor.

    Attributes:
        offsets: of its first element in the whole tensor.
        tensor: the piece.
    """

    offsets: tuple[int, ...]
    tensor: LazyTensor


@dataclass(frozen=True, slots=True)
class ShardedTensor:
    """A tensor in pieces.

    Attributes:
        shape: of the whole tensor.
        dtype: of all pieces.
        pieces: that fill it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[Piece, ...]

    def whole(self) -> LazyTensor:
        """Return the whole tensor."""
        return LazyTensor(self.shape, self.dtype, lambda begin, end: self._box((begin,), (end,)))

    def of_first(self, number: int) -> LazyTensor:
        """Return the tensor at one place of the first dimension, such as a layer's of a stacked weight."""
        shape = self.shape[1:]
        return LazyTensor(shape, self.dtype, lambda begin, end: self._box((number, begin), (number + 1, end))[0])

    def _box(self, begin: tuple[int, ...], end: tuple[int, ...]) -> Tensor:
        """Read [begin, end) of the first dimensions, and all of the others."""
        begin = begin + (0,) * (len(self.shape) - len(begin))
        end = end + self.shape[len(end) :]
        size = [high - low for low, high in zip(begin, end, strict=True)]
        values = torch.empty(size, dtype=self.dtype)
        filled = 0
        for piece in self.pieces:
            box = [
                (max(low, first), min(high, first + length))
                for low, high, first, length in zip(begin, end, piece.offsets, piece.tensor.shape, strict=True)
            ]
            if all(low < high for low, high in box):
                filled += _copy(piece, box, begin, values)
        if filled != values.numel():
            msg = f"its index leaves out or repeats {abs(values.numel() - filled)} numbers of a tensor.\nCopy it again."
            raise DamageError(msg)
        return values


def sharded_tensors(folder: Path, index: Metadata) -> dict[str, ShardedTensor]:
    """Return the tensors that an index lists, by their keys.

    Raises:
        DamageError: the index names a file outside of the folder, or that is not there, or no place of a piece.
    """
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415  half a second that other formats are spared

    places: dict[tuple[str, tuple[int, ...]], Any] = {
        (entry.fqn, tuple(entry.offset or ())): info for entry, info in index.storage_data.items()
    }
    found = {}
    for key, metadata in index.state_dict_metadata.items():
        if isinstance(metadata, TensorStorageMetadata):
            dtype = metadata.properties.dtype
            pieces = tuple(
                _piece(folder, key, tuple(chunk.offsets), tuple(chunk.sizes), dtype, places)
                for chunk in metadata.chunks
            )
            found[key] = ShardedTensor(tuple(metadata.size), dtype, pieces)
    return found


def _piece(
    folder: Path,
    key: str,
    offsets: tuple[int, ...],
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    places: dict[tuple[str, tuple[int, ...]], Any],
) -> Piece:
    info = places.get((key, offsets))
    if info is None or "/" in info.relative_path or not (folder / info.relative_path).is_file():
        where = "its index names no file" if info is None else f"{info.relative_path[:80]} is missing"
        msg = f"{folder} lacks a piece of {key[:120]}: {where}.\nCopy the missing files there."
        raise DamageError(msg)
    return Piece(offsets, embedded_tensor(folder / info.relative_path, info.offset, info.length, sizes, dtype))


def _copy(piece: Piece, box: list[tuple[int, int]], begin: tuple[int, ...], values: Tensor) -> int:
    """Copy the part of a piece inside a box; return the count of its numbers."""
    (low, high), *others = box
    part = piece.tensor.rows(low - piece.offsets[0], high - piece.offsets[0])
    for dim, (first, last) in enumerate(others, 1):
        part = part.narrow(dim, first - piece.offsets[dim], last - first)
    place = values
    for dim, (first, last) in enumerate(box):
        place = place.narrow(dim, first - begin[dim], last - first)
    place.copy_(part)
    return place.numel()
