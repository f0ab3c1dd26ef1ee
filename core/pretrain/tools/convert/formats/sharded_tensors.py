"""Tensors of a sharded checkpoint (torch.distributed.checkpoint): each in pieces, which several files hold."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from pretrain.errors import DamageError
from pretrain.tools.convert.lazy_tensor import LazyTensor
from pretrain.tools.convert.stored import damaged, embedded_tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from torch import Tensor
    from torch.distributed.checkpoint.metadata import Metadata


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """A piece of a tensor."""

    offsets: tuple[int, ...]  # of its first element in the whole tensor
    tensor: LazyTensor


@dataclass(frozen=True)
class ShardedTensor:
    """A tensor in pieces."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[TensorPiece, ...]  # that have every number once

    def whole(self) -> LazyTensor:
        """Return the whole tensor."""
        return LazyTensor(self.shape, self.dtype, lambda begin, end: self._box((begin,), (end,)))

    def of_first(self, number: int) -> LazyTensor:
        """Return the tensor at one place of the first dimension, such as a layer's of a stacked weight."""
        shape = self.shape[1:]
        return LazyTensor(shape, self.dtype, lambda begin, end: self._box((number, begin), (number + 1, end))[0])

    @cached_property
    def _ascending(self) -> tuple[list[TensorPiece], list[int], int]:
        """The pieces by their offsets, the first offset of each, and the most rows that one has."""
        pieces = sorted(self.pieces, key=lambda piece: piece.offsets)
        longest = max((piece.tensor.shape[0] for piece in pieces), default=0)
        return pieces, [piece.offsets[0] for piece in pieces], longest

    def _box(self, begin: tuple[int, ...], end: tuple[int, ...]) -> Tensor:
        """Read [begin, end) of the first dimensions, and all of the others."""
        begin = begin + (0,) * (len(self.shape) - len(begin))
        end = end + self.shape[len(end) :]
        values = torch.empty([high - low for low, high in zip(begin, end, strict=True)], dtype=self.dtype)
        pieces, firsts, longest = self._ascending
        for piece in pieces[bisect_right(firsts, begin[0] - longest) : bisect_left(firsts, end[0])]:
            box = [
                (max(low, first), min(high, first + length))
                for low, high, first, length in zip(begin, end, piece.offsets, piece.tensor.shape, strict=True)
            ]
            if all(low < high for low, high in box):
                _copy(piece, box, begin, values)
        return values


def sharded_tensors(folder: Path, index: Metadata) -> dict[str, ShardedTensor]:
    """Return the tensors that an index lists, by their keys; empty ones are left out."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415  half a second that other formats are spared

    places = {(entry.fqn, tuple(entry.offset or ())): info for entry, info in index.storage_data.items()}

    @cache
    def size_of(name: str) -> int | None:
        path = folder / name
        return path.stat().st_size if "/" not in name and path.is_file() else None

    found = {}
    for key, metadata in index.state_dict_metadata.items():
        if isinstance(metadata, TensorStorageMetadata):
            shape, dtype = tuple(metadata.size), metadata.properties.dtype
            chunks = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in metadata.chunks if 0 not in chunk.sizes]
            pieces = []
            for offsets, sizes in chunks:
                info: Any = places.get((key, offsets))
                size = None if info is None else size_of(info.relative_path)
                _require_there(folder, key, info, size, math.prod(sizes) * dtype.itemsize)
                path = folder / info.relative_path
                pieces.append(TensorPiece(offsets, embedded_tensor(path, info.offset, info.length, sizes, dtype)))
            if pieces:
                found[key] = ShardedTensor(shape, dtype, tuple(pieces))
    return found


def _require_there(folder: Path, key: str, info: Any, size: int | None, least: int) -> None:
    """Require a piece of at least so many bytes where the index says, in a file of `size`; None: it is missing."""
    if info is None or size is None:
        where = "its index names no file" if info is None else f"{info.relative_path[:80]} is missing"
        msg = f"{folder} lacks a piece of {key[:120]}: {where}.\nCopy the missing files there."
        raise DamageError(msg)
    if not 0 <= info.offset <= info.offset + info.length <= size:
        raise damaged(folder / info.relative_path, f"is cut off: it ends before a piece of {key[:120]}")
    if least > info.length:
        raise damaged(folder, f"is damaged: a piece of {key[:120]} is larger than its place in its file")


def _copy(piece: TensorPiece, box: list[tuple[int, int]], begin: tuple[int, ...], values: Tensor) -> None:
    (low, high), *others = box
    part = piece.tensor.rows(low - piece.offsets[0], high - piece.offsets[0])
    for dim, (first, last) in enumerate(others, 1):
        part = part.narrow(dim, first - piece.offsets[dim], last - first)
    place = values
    for dim, (first, last) in enumerate(box):
        place = place.narrow(dim, first - begin[dim], last - first)
    place.copy_(part)


_MOST_DIMENSIONS = 6  # a piece has 2 to the power of the dimensions corners
Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes of a piece


def require_tiled(path: Path, key: str, shape: Sequence[int], pieces: Sequence[Box]) -> None:
    """Require that pieces fill a tensor without overlap; the time is linear in their number.

    A number is in the pieces as often as the differences at their corners add up to: +1 at the first corner, with the
    sign changing along each dimension. They therefore have each number once where their corners' sum is the tensor's.
    """
    rank = len(shape)
    whole = (0,) * rank, tuple(shape)
    if rank > _MOST_DIMENSIONS or not all(_is_box(box, rank) for box in (whole, *pieces)):
        problem = "has pieces of other dimensions than its own"
    elif _corners(pieces) != _corners([whole]):
        problem = "has numbers that its pieces leave out or repeat"
    else:
        return
    raise damaged(path, f"is damaged: {key[:120]} {problem}")


def _is_box(box: Box, rank: int) -> bool:
    return all(len(numbers) == rank and all(type(each) is int and each >= 0 for each in numbers) for numbers in box)


def _corners(boxes: Iterable[Box]) -> dict[tuple[int, ...], int]:
    """Return the sum of the signs at every corner where it is not 0; those of an empty box cancel."""
    signs: Counter[tuple[int, ...]] = Counter()
    for offsets, sizes in boxes:
        for ends in product((0, 1), repeat=len(sizes)):
            corner = tuple(first + end * size for first, end, size in zip(offsets, ends, sizes, strict=True))
            signs[corner] += -1 if sum(ends) % 2 else 1
    return {corner: sign for corner, sign in signs.items() if sign}
