"""Shares of a checkpoint: what each of the ranks that hold the same part of the model writes, and reads.

The bytes of all their tensors are laid in one line, and the line is cut into equal shares, so that a large embedding
has several writers. The shapes alone tell the cuts. megatron-core's fully parallel save gives away whole tensors, and
gathers the descriptions of every replica's tensors on each of them.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_outplace, nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.strategies.torch import TorchDistLoadShardedStrategy

from pretrain.checkpoint.sharded_format import EXPERTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import torch

Box = tuple[slice, ...]  # part of a tensor, one slice a dimension


def boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Yield the boxes that elements `start` up to `stop` of a flat tensor fill in its shape, in their order."""
    if start >= stop:
        return
    if not shape:
        yield ()
        return
    size, rest = math.prod(shape[1:]), shape[1:]
    first, last = -(-start // size), stop // size  # whole rows
    if start < first * size:
        row = first - 1
        yield from ((slice(row, first), *box) for box in boxes(rest, start - row * size, min(size, stop - row * size)))
    if first < last:
        yield (slice(first, last), *(slice(0, length) for length in rest))
    if first <= last:
        yield from ((slice(last, last + 1), *box) for box in boxes(rest, 0, stop - last * size))


def overlap(box: Box, begin: tuple[int, ...], shape: tuple[int, ...]) -> Box | None:
    """Return the part of a box inside of a tensor of a shape that begins there, in the tensor's own places."""
    found = tuple(
        slice(max(cut.start - first, 0), min(cut.stop - first, length))
        for cut, first, length in zip(box, begin, shape, strict=True)
    )
    return found if all(cut.start < cut.stop for cut in found) else None


def piece(part: ShardedTensor, box: Box, data: torch.Tensor | None = None) -> ShardedTensor:
    """Return a box of a part, of the part's own data or of `data` in the box's shape, as this rank's alone."""
    before = part.prepend_axis_num
    inside = part.data[box] if data is None else data
    inside = inside.detach()[(None,) * before]
    offset = [begin + cut.start for begin, cut in zip(part.global_offset[before:], box, strict=True)]
    return ShardedTensor(
        part.key,
        inside,
        inside.dtype,
        tuple(inside.shape),
        part.global_shape,
        (*part.global_offset[:before], *offset),
        None,  # pieces are not of one size
        replica_id=int(is_copy(part)),
        allow_shape_mismatch=part.allow_shape_mismatch,
    )


def is_copy(part: Any) -> bool:
    """Say whether ranks of another line write a part: a tied embedding's copy, a norm of a further tensor rank."""
    return any(part.replica_id[:-1])


def divided(parts: Iterable[ShardedTensor], ranks: int) -> Iterator[tuple[ShardedTensor, int, int, int]]:
    """Yield parts in the line's order, with the rank whose share has elements `start` up to `stop` of each."""
    line = sorted(
        (part for part in parts if math.prod(part.local_shape)), key=lambda each: (each.key, each.global_offset)
    )
    total, before = sum(map(_bytes, line)), 0
    for part in line:
        size, numel, stop = _bytes(part), math.prod(part.local_shape), 0
        row = part.local_shape[-1] if part.local_shape else 1
        for rank in range(before * ranks // total, ranks):
            start, end = stop, total * (rank + 1) // ranks - before
            stop = numel if end >= size else max(start, end // part.dtype.itemsize // row * row)
            if start < stop:
                yield part, rank, start, stop
            if stop == numel:
                break
        before += size


def own(structure: Any, *, copies: bool = False) -> list[Any]:
    """Return this rank's share of sharded tensors, and what it alone holds; `copies`: also of what others write."""
    mine = [part for part in nested_values(structure) if not has_replicas(part)]
    written = [part for part in nested_values(structure) if has_replicas(part) and (copies or not is_copy(part))]
    for group, parts in lines(written):
        mine += [shared for shared, rank in _pieces(parts, group.size()) if rank == group.rank()]
    return mine


class ReadOnce(TorchDistLoadShardedStrategy):  # type: ignore[misc]
    """Reads each tensor once for all ranks that need the same, a share each, and sends it on in their group."""

    def load(self, sharded_state_dict: Any, checkpoint_dir: Path) -> Any:
        """Return the structure with what was read; tensors in the memory that the request has. Collective."""
        tensors = [part for part in nested_values(sharded_state_dict) if isinstance(part, ShardedTensor)]
        for part in tensors:
            if part.data is None:
                part.init_data("cpu")
        shared = [
            (of_one, owner, group)
            for group, parts in lines(filter(has_replicas, tensors))
            for of_one, owner in _pieces(parts, group.size())
        ]
        rest = [part for part in nested_values(sharded_state_dict) if not has_replicas(part)]
        mine = [of_one for of_one, owner, group in shared if owner == group.rank()]
        found = super().load(dict(enumerate(chain(rest, mine))), checkpoint_dir)
        for of_one, owner, group in shared:
            send(of_one.data, owner, group)
        loaded = {id(part): found[number] for number, part in enumerate(rest)}
        return dict_list_map_outplace(
            lambda part: part.data.detach() if isinstance(part, ShardedTensor) else loaded[id(part)], sharded_state_dict
        )


def _bytes(part: ShardedTensor) -> int:
    size: int = math.prod(part.local_shape) * part.dtype.itemsize
    return size


def has_replicas(part: Any) -> bool:
    """Say whether other ranks hold a tensor too: pieces, and objects of one rank, have one number as their replica."""
    return isinstance(part, ShardedTensor) and isinstance(part.replica_id, tuple)


def lines(parts: Iterable[ShardedTensor]) -> Iterator[tuple[dist.ProcessGroup, list[ShardedTensor]]]:
    """Yield the parts that all ranks of a group hold: experts have another group."""
    both: tuple[list[ShardedTensor], list[ShardedTensor]] = ([], [])
    for part in parts:
        both[EXPERTS in part.key].append(part)
    yield parallel_state.get_data_parallel_group(with_context_parallel=True), both[0]
    if both[1]:
        yield parallel_state.get_expert_data_parallel_group(), both[1]


def _pieces(parts: Iterable[ShardedTensor], ranks: int) -> Iterator[tuple[ShardedTensor, int]]:
    for part, rank, start, stop in divided(parts, ranks):
        yield from ((piece(part, box), rank) for box in boxes(part.local_shape, start, stop))


def send(data: torch.Tensor, owner: int, group: dist.ProcessGroup) -> None:
    """Give all ranks of a group what one has read, in place; over the group's device, a piece at a time."""
    if group.size() == 1:
        return
    over = data.to(device_of(group, data)).contiguous()
    dist.broadcast(over, group_src=owner, group=group)
    if over is not data:
        data.copy_(over)


def device_of(group: dist.ProcessGroup, data: torch.Tensor) -> str:
    """Return the kind of device over which a group sends a tensor: the tensor's own if the group can."""
    devices: list[str] = [device.type for device in group._device_types]  # noqa: SLF001  torch has no other way to ask
    return data.device.type if data.device.type in devices else devices[0]
