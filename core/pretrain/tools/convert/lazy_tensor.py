"""Tensors that are read when they are used, a block of rows at a time, and operations on them."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

BLOCK = 1 << 20  # bytes of a tensor that are in memory at a time where it can be read by rows
_WHOLE = threading.RLock()  # held while a whole weight is rearranged: several at once could be more than memory has


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor of one dimension or more that is somewhere else."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: Callable[[int, int], Tensor]  # reads [begin, end) of the first dimension
    by_rows: bool = True  # whether reading some rows reads no others; if not, each call of `rows` reads all of them

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def whole(self) -> Tensor:
        """Read the whole tensor."""
        return self.rows(0, self.shape[0])

    def blocks(self, size: int = BLOCK) -> Iterator[Tensor]:
        """Read it in blocks of rows, contiguous and in their order, each of about `size` bytes."""
        count = self.shape[0]
        step = max(1, size * count // max(1, self.nbytes)) if self.by_rows else count
        for begin in range(0, count, max(1, step)):
            yield self.rows(begin, min(begin + step, count)).contiguous()


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor as bytes, without a copy."""
    data: Any = tensor.flatten().view(torch.uint8).numpy()
    return memoryview(data)


def in_memory(tensor: Tensor) -> LazyTensor:
    """Return a tensor that is in memory already."""
    return LazyTensor(tuple(tensor.shape), tensor.dtype, lambda begin, end: tensor[begin:end])


def constant(shape: tuple[int, ...], dtype: torch.dtype, value: float) -> LazyTensor:
    """Return a tensor of one value."""
    return LazyTensor(shape, dtype, lambda begin, end: torch.full((end - begin, *shape[1:]), value, dtype=dtype))


def joined(parts: Sequence[LazyTensor], dim: int) -> LazyTensor:
    """Return the parts one after the other along dimension 0 or 1."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    _require_alike(parts, {(part.dtype, part.shape[:dim], part.shape[dim + 1 :]) for part in parts})
    shape = (*first.shape[:dim], sum(part.shape[dim] for part in parts), *first.shape[dim + 1 :])
    by_rows = all(part.by_rows for part in parts)

    def rows(begin: int, end: int) -> Tensor:
        if dim == 1:
            return torch.cat([part.rows(begin, end) for part in parts], 1)
        found, before = [], 0
        for part in parts:
            low, high = max(begin - before, 0), min(end - before, part.shape[0])
            if low < high:
                found.append(part.rows(low, high))
            before += part.shape[0]
        return found[0] if len(found) == 1 else torch.cat(found)

    return LazyTensor(shape, first.dtype, rows, by_rows)


def stacked(parts: Sequence[LazyTensor]) -> LazyTensor:
    """Return the parts, all of one shape, along a new first dimension; reading one of its rows reads one part."""
    first = parts[0]
    _require_alike(parts, {(part.dtype, part.shape) for part in parts})
    shape = (len(parts), *first.shape)
    return LazyTensor(shape, first.dtype, lambda begin, end: torch.stack([part.whole() for part in parts[begin:end]]))


def row_of(whole: LazyTensor, number: int) -> LazyTensor:
    """Return one row of a tensor of two dimensions or more as a tensor, of which each call of `rows` reads all."""
    return LazyTensor(
        whole.shape[1:],
        whole.dtype,
        lambda begin, end: whole.rows(number, number + 1)[0, begin:end],
        by_rows=False,
    )


def part_of(whole: LazyTensor, dim: int, index: int, parts: int) -> LazyTensor:
    """Return one of so many equal parts along dimension 0 or 1."""
    if parts == 1:
        return whole
    if whole.shape[dim] % parts:
        msg = f"{parts} ranks cannot share a weight of shape {list(whole.shape)} along dimension {dim}."
        raise CheckpointError(msg)
    size = whole.shape[dim] // parts
    return narrowed(whole, dim, index * size, size)


def narrowed(whole: LazyTensor, dim: int, start: int, length: int) -> LazyTensor:
    """Return [start, start + length) of dimension 0 or 1."""
    shape = (*whole.shape[:dim], length, *whole.shape[dim + 1 :])
    if dim == 0:
        return replace(whole, shape=shape, rows=lambda begin, end: whole.rows(begin + start, end + start))
    return replace(whole, shape=shape, rows=lambda begin, end: whole.rows(begin, end).narrow(1, start, length))


def with_rows(whole: LazyTensor, count: int, *, repeats_last: bool = False) -> LazyTensor:
    """Return `count` rows: the first ones, or where there are too few also rows of zeros, or the last row repeated."""
    present = whole.shape[0]
    if count <= present:
        return whole if count == present else narrowed(whole, 0, 0, count)
    shape = (count - present, *whole.shape[1:])
    more = constant(shape, whole.dtype, 0.0)
    if repeats_last:
        last = narrowed(whole, 0, present - 1, 1)
        more = replace(more, rows=lambda begin, end: last.rows(0, 1).expand(end - begin, *shape[1:]))
    return joined([whole, more], 0)


def summed(parts: Sequence[LazyTensor]) -> LazyTensor:
    """Return the sum of equal shapes, computed in fp32 at least and rounded once."""
    return _combined(parts, lambda stacked: stacked.sum(0))


def averaged(parts: Sequence[LazyTensor]) -> LazyTensor:
    """Return the mean of equal shapes, computed in fp32 at least and rounded once; equal parts stay as they are."""
    return _combined(parts, lambda stacked: stacked[0] if bool((stacked == stacked[0]).all()) else stacked.mean(0))


def rearranged(
    whole: LazyTensor, function: Callable[[Tensor], Tensor], shape: tuple[int, ...] | None = None
) -> LazyTensor:
    """Return a tensor of the same numbers in another order, for which the whole is read."""

    def rows(begin: int, end: int) -> Tensor:
        with _WHOLE:
            return function(whole.whole())[begin:end]

    return LazyTensor(whole.shape if shape is None else shape, whole.dtype, rows, by_rows=False)


def transposed(whole: LazyTensor) -> LazyTensor:
    """Return a matrix with its dimensions exchanged."""
    return rearranged(whole, lambda tensor: tensor.t().contiguous(), (whole.shape[1], whole.shape[0]))


def cast(whole: LazyTensor, dtype: torch.dtype, name: str) -> LazyTensor:
    """Return the tensor in another dtype; a finite number beyond fp16 is an error while it is read."""
    if whole.dtype == dtype:
        return whole

    def rows(begin: int, end: int) -> Tensor:
        before = whole.rows(begin, end)
        after = before.to(dtype)
        if dtype == torch.float16 and not bool((after.isfinite() == before.isfinite()).all()):
            largest = before[before.isfinite()].abs().max().item()
            limit = "fp16's maximum is 65504.\nKeep its dtype, or choose bf16 or fp32."
            msg = f"{name} has numbers up to {largest:.3g}; {limit}"
            raise CheckpointError(msg)
        return after

    return replace(whole, dtype=dtype, rows=rows)


def _combined(parts: Sequence[LazyTensor], function: Callable[[Tensor], Tensor]) -> LazyTensor:
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    _require_alike(parts, {(part.dtype, part.shape) for part in parts})

    def rows(begin: int, end: int) -> Tensor:
        stacked = torch.stack([part.rows(begin, end) for part in parts])
        wide = stacked if first.dtype == torch.float64 else stacked.float()
        return function(wide).to(first.dtype)

    return replace(first, rows=rows, by_rows=all(part.by_rows for part in parts))


def _require_alike(parts: Sequence[LazyTensor], kinds: set[Any]) -> None:
    if len(kinds) > 1:
        msg = f"parts of one weight do not belong together: {', '.join(map(described, parts[:4]))}."
        raise CheckpointError(msg)


def described(part: LazyTensor) -> str:
    """Return dtype and shape, as in an error."""
    return f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"


def unflattened(flat: LazyTensor, start: int, shape: tuple[int, ...]) -> LazyTensor:
    """Return the tensor of a shape whose numbers begin at `start` of a flat tensor [n]; rows of it read only theirs."""
    row = math.prod(shape[1:])

    def rows(begin: int, end: int) -> Tensor:
        return flat.rows(start + begin * row, start + end * row).view(end - begin, *shape[1:])

    return LazyTensor(shape, flat.dtype, rows, flat.by_rows)


def equal_to(embedding: LazyTensor, output: LazyTensor, folder: Path, names: tuple[str, str]) -> LazyTensor:
    """Return the embedding, whose rows are compared with those of the output layer when they are read."""
    msg = f"{folder} ties the output layer to the embedding, but {names[1]} differs from {names[0]}.\n"
    msg += "Keep both by --set model.untie_embeddings_and_output_weights=true, or remove one of them."
    if (embedding.shape, embedding.dtype) != (output.shape, output.dtype):
        raise CheckpointError(msg)

    def rows(begin: int, end: int) -> Tensor:
        found, other = embedding.rows(begin, end), output.rows(begin, end)
        if not torch.equal(found.flatten().view(torch.uint8), other.flatten().view(torch.uint8)):
            raise CheckpointError(msg)
        return found

    return replace(embedding, rows=rows, by_rows=embedding.by_rows and output.by_rows)
