"""Parameter groups: which weights decay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.bridge.deepspeed.zero_state import full_shape

if TYPE_CHECKING:
    from torch import nn


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the groups that megatron-core makes: matrices with weight decay, vectors (biases, norms) without.

    megatron.core.optimizer `_get_param_groups`, whose schedule reads `wd_mult` and `lr_mult`.
    """
    parameters = list(model.parameters())
    matrices = [parameter for parameter in parameters if len(full_shape(parameter)) > 1]
    vectors = [parameter for parameter in parameters if len(full_shape(parameter)) <= 1]
    groups = ((matrices, 1.0), (vectors, 0.0))
    return [{"params": chosen, "wd_mult": decay, "lr_mult": 1.0} for chosen, decay in groups if chosen]
