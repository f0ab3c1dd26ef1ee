"""The device of a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.model.requests import compute_dtype
from pretrain.plugins.host.members import take_device
from pretrain.plugins.host.readiness import require_compilation, require_dtype, require_overlap

if TYPE_CHECKING:
    import torch

    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe


def rank_device(recipe: Recipe, plugins: Plugins, local_rank: int) -> torch.device:
    """Return this rank's device, which must know the recipe's dtype and for which layers compile if they are to.

    Raises:
        BackendError: it cannot do what the recipe asks.
    """
    device = take_device(plugins, local_rank)
    require_dtype(plugins, compute_dtype(recipe))
    require_compilation(plugins, recipe)
    require_overlap(plugins, recipe)
    return device
