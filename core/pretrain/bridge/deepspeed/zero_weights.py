"""Access weights that ZeRO-3 of DeepSpeed may have partitioned over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist

from pretrain.bridge.deepspeed.zero_swapped_tensors import part_of

if TYPE_CHECKING:
    from torch import Tensor


def full_shape(parameter: Tensor) -> tuple[int, ...]:
    """Return the shape of this tensor-parallel rank's weight; ZeRO-3 leaves a parameter empty between its uses."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def own_part(parameter: Any) -> Tensor:
    """Return this rank's part of a weight: all of it, or with ZeRO-3 its part of the flat weight, unpadded."""
    if not hasattr(parameter, "ds_tensor"):
        return cast("Tensor", parameter.detach())
    part = part_of(parameter)
    start = dist.get_rank(parameter.ds_process_group) * part.numel()
    return part[: max(0, parameter.ds_numel - start)]
