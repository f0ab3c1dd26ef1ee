"""State of megatron-core's distributed optimizer in a checkpoint: each rank writes and reads what it holds.

It holds flat ranges of the weights' main weights and moments. megatron-core gathers them for its format that any layout
reads, on one rank or on all; here a range is cut into boxes of the weight's shape, which need no gathering.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory

from pretrain.checkpoint.shares import boxes, overlap, piece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from megatron.core.dist_checkpointing.mapping import ShardedTensor

States = dict[str, torch.Tensor]  # flat, by megatron-core's names: "param", "exp_avg", ...


def held(optimizer: Any) -> Iterator[tuple[torch.Tensor, int, States]]:
    """Yield each weight of which a DistributedOptimizer holds a part, the part's first element, and its states."""
    for buffer in optimizer.gbuf_ranges:
        for buckets in buffer.values():
            for bucket in buckets:
                for weight, ranges in bucket["param_map"].items():
                    states = optimizer._get_main_param_and_optimizer_states(weight)  # noqa: SLF001
                    yield weight, ranges["param"].start, {key: flat for key, flat in states.items() if key != "step"}


def pieces(part: Any, prefix: str, start: int, flat: torch.Tensor) -> Iterator[ShardedTensor]:
    """Yield elements `start` and on of a weight or its state as pieces that are views of `flat`.

    `part` is the weight's sharded tensor or factory, and `prefix` the beginning of the state's key.
    """
    shape = part.data.shape
    for box in boxes(shape, start, start + flat.numel()):
        inside = [cut.stop - cut.start for cut in box]
        size = torch.Size(inside).numel()
        values, flat = flat[:size].view(inside), flat[size:]
        for whole, begin in _cut(part):
            common = overlap(box, begin, whole.local_shape)
            if common is not None:
                in_values = tuple(
                    slice(cut.start + first - own.start, cut.stop + first - own.start)
                    for cut, first, own in zip(common, begin, box, strict=True)
                )
                found = piece(whole, common, values[in_values])
                found.key = prefix + whole.key
                yield found


@torch.no_grad()
def put(optimizer: Any, loaded: Mapping[torch.Tensor, States]) -> None:
    """Give the optimizer states of the weights, as `held` yields them."""
    for weight, states in loaded.items():
        optimizer._set_main_param_and_optimizer_states(weight, states)  # noqa: SLF001
    synchronize: Callable[[], None] | None = getattr(optimizer.optimizer, "_sync_hdo_state_to_sub_optimizers", None)
    if synchronize is not None:  # states that are offloaded to the host
        synchronize()


def _cut(part: Any) -> Iterator[tuple[ShardedTensor, tuple[int, ...]]]:
    """Yield the sharded tensors of a weight, each with its place in it: a gated MLP's has two."""
    if not isinstance(part, ShardedTensorFactory):
        yield part, (0,) * part.data.dim()
        return
    weight = part.data
    for each in part.build():
        place, rest = [], each.data.storage_offset() - weight.storage_offset()
        for stride in weight.stride():  # what a weight is cut into are views of it
            place.append(rest // stride)
            rest %= stride
        yield each, tuple(place)
