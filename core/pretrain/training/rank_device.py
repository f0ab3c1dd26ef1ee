"""The device of a rank."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from pretrain.model.requests import compute_dtype
from pretrain.plugins.host.members import require_compilation, require_dtype, require_overlap, take_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


@contextmanager
def deterministic(*, is_wanted: bool) -> Iterator[None]:
    """Allow only torch's deterministic algorithms, or any; restore the setting afterwards.

    torch would also fill every tensor of torch.empty, which costs a pass over it; a read of uninitialized memory is a
    bug in any mode.
    """
    algorithms, warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    memory: Any = torch.utils.deterministic
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(is_wanted)
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(algorithms, warn_only=warns)
        memory.fill_uninitialized_memory = fills
