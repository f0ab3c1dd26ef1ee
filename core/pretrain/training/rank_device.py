"""The device of a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.model.requests import compute_dtype
from pretrain.plugins.host.members import take_device
from pretrain.plugins.host.readiness import require_compilation, require_dtype, require_overlap

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe


def rank_device(recipe: Recipe, plugins: Plugins, local_rank: int) -> torch.device:
    """Return this rank's device, which must know the recipe's dtype and for which layers compile if they are to.

    Raises:
        BackendError: it cannot do what the recipe asks.
    """
    device = take_device(plugins, local_rank)
    for require in REQUIREMENTS:
        require(plugins, recipe)
    return device


def _require_dtype(plugins: Plugins, recipe: Recipe) -> None:
    require_dtype(plugins, compute_dtype(recipe))


REQUIREMENTS: tuple[Callable[[Plugins, Recipe], None], ...] = (_require_dtype, require_compilation, require_overlap)
"""Checks of a device that is there, which the doctor makes too; each raises a BackendError."""
