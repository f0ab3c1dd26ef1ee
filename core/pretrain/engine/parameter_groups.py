"""Parameter groups: which weights decay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist

from pretrain.bridge.zero_files import part_of

if TYPE_CHECKING:
    from torch import Tensor, nn


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the groups that megatron-core makes: matrices with weight decay, vectors (biases, norms) without.

    megatron.core.optimizer `_get_param_groups`, whose schedule reads `wd_mult` and `lr_mult`.
    """
    parameters = list(model.parameters())
    matrices = [parameter for parameter in parameters if len(full_shape(parameter)) > 1]
    vectors = [parameter for parameter in parameters if len(full_shape(parameter)) <= 1]
    groups = ((matrices, 1.0), (vectors, 0.0))
    return [{"params": chosen, "wd_mult": decay, "lr_mult": 1.0} for chosen, decay in groups if chosen]


def full_shape(parameter: Tensor) -> tuple[int, ...]:
    """Return the shape of this tensor-parallel rank's weight; ZeRO-3 leaves a parameter empty between its uses."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def own_part(parameter: Any) -> Tensor:
    """Return what this rank holds of a weight: all of it, or with ZeRO-3 its part of the flat weight, unpadded."""
    if not hasattr(parameter, "ds_tensor"):
        return cast("Tensor", parameter.detach())
    part = part_of(parameter)
    start = dist.get_rank(parameter.ds_process_group) * part.numel()
    return part[: max(0, parameter.ds_numel - start)]
