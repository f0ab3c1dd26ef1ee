"""What a rank keeps in its node's copy, and how ranks that hold the same part of the model read it again together."""

from __future__ import annotations

import io
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_outplace, nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies.torch import TorchDistLoadShardedStrategy
from megatron.core.dist_checkpointing.utils import force_all_tensors_to_non_fp8

from pretrain.checkpoint.shares import has_replicas, lines, overlap, own, send
from pretrain.checkpoint.snapshot import state_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from pretrain.checkpoint.contents import Saved
    from pretrain.checkpoint.shares import Box

Place = tuple[tuple[int, ...], tuple[int, ...]]  # of a tensor in the whole: first element and shape


def content_of(engine: Saved, progress: Mapping[str, Any]) -> dict[str, Any]:
    """Return this rank's share of the state in host memory, collective: plain values and tensors, which run no code."""
    state = state_of(engine, progress)
    force_all_tensors_to_non_fp8(state)  # as megatron-core's own save
    sharded, common = save_preprocess(state, validate_access_integrity=False)
    tensors: dict[str, list[tuple[tuple[int, ...], torch.Tensor]]] = defaultdict(list)
    objects = {}
    for part in own(sharded, copies=True):
        if isinstance(part, ShardedTensor):
            tensors[part.key].append((tuple(part.global_offset), part.data.detach().to("cpu", copy=True).contiguous()))
        else:
            objects[part.unique_key] = _packed(part.data)
    return {"common": common, "tensors": dict(tensors), "objects": objects}


class FromNodes(TorchDistLoadShardedStrategy):  # type: ignore[misc]
    """Reads what ranks have in their copies, and sends on what others of their group need."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        """Take what `content_of` returned on this rank; the ranks of each group tell each other what they have."""
        super().__init__()
        self._tensors, self._objects = content["tensors"], content["objects"]
        self.problem: str | None = None  # what was not there on this rank, once loaded
        places = {
            key: [(begin, tuple(tensor.shape)) for begin, tensor in parts] for key, parts in self._tensors.items()
        }
        self._held = {
            group: _gathered(places, group)
            for group in (
                parallel_state.get_data_parallel_group(with_context_parallel=True),
                parallel_state.get_expert_data_parallel_group(),
            )
        }

    def load(self, sharded_state_dict: Any, checkpoint_dir: Path) -> Any:  # noqa: ARG002  megatron-core's signature
        """Return the structure with what was read; tensors in the memory that the request has. Collective."""
        parts = list(nested_values(sharded_state_dict))
        tensors = [part for part in parts if isinstance(part, ShardedTensor)]
        for part in tensors:
            if part.data is None:
                part.init_data("cpu")
        for group, shared in lines(filter(has_replicas, tensors)):
            for part in shared:
                self._require(part, sum(self._fill(part, owner, group) for owner in range(group.size())))
        for part in tensors:
            if not has_replicas(part):
                self._require(part, self._fill(part, 0, None))
        return dict_list_map_outplace(
            lambda part: part.data.detach() if isinstance(part, ShardedTensor) else self._object(part),
            sharded_state_dict,
        )

    def _object(self, part: Any) -> Any:
        return _unpacked(self._objects[part.unique_key]) if part.unique_key in self._objects else part.data

    def _require(self, part: ShardedTensor, filled: int) -> None:
        if filled != math.prod(part.local_shape):  # not raised here: the other ranks go on
            self.problem = f"a part of {part.key} is missing"

    def _fill(self, part: ShardedTensor, owner: int, group: dist.ProcessGroup | None) -> int:
        """Fill a tensor with what a rank of the group has of it, this one without a group; return the elements."""
        is_own = group is None or owner == group.rank()
        own_parts = self._tensors.get(part.key, ())
        places: list[Place] = (
            [(begin, tuple(tensor.shape)) for begin, tensor in own_parts]
            if group is None
            else self._held[group][owner].get(part.key, [])
        )
        shape = (1,) * part.prepend_axis_num + tuple(part.local_shape)
        data = part.data.detach()[(None,) * part.prepend_axis_num]
        filled = 0
        for number, (begin, size) in enumerate(places):
            here = overlap(_box(begin, size), part.global_offset, shape)
            there = overlap(_box(part.global_offset, shape), begin, size)
            if here is None or there is None:
                continue
            if is_own:
                data[here].copy_(own_parts[number][1][there])
            if group is not None:
                send(data[here], owner, group)
            filled += data[here].numel()
        return filled


def _box(begin: tuple[int, ...], shape: tuple[int, ...]) -> Box:
    return tuple(slice(first, first + length) for first, length in zip(begin, shape, strict=True))


def _gathered(value: Any, group: dist.ProcessGroup) -> list[Any]:
    of_all = [None] * group.size()
    dist.all_gather_object(of_all, value, group=group)
    return of_all


def _packed(data: Any) -> Any:
    return {"bytes": data.getvalue()} if isinstance(data, io.BytesIO) else data


def _unpacked(data: Any) -> Any:
    return io.BytesIO(data["bytes"]) if isinstance(data, dict) and data.keys() == {"bytes"} else data
