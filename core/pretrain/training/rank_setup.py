"""What a training, or a trained model, is built from on a rank: recipe, plugins, place, layout, device, tokenizer."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pretrain.data.tokenizers.load import load_tokenizer
from pretrain.model.requests import compute_dtype
from pretrain.plugins.host.members import require_compilation, require_dtype, require_overlap, take_device
from pretrain.recipe.layout import lay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pretrain.data.tokenizers.tokenizer import Tokenizer
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSetup:
    """What everything on a rank is built from."""

    recipe: Recipe
    plugins: Plugins  # the loaded backend, whose device is available and for which the bridge is installed
    world: World
    layout: Layout
    device: torch.device
    tokenizer: Tokenizer

    @classmethod
    def of(cls, recipe: Recipe, plugins: Plugins, world: World) -> RankSetup:
        """Take this rank's device, and load the tokenizer; PretrainError if they or the layout do not fit."""
        return cls(
            recipe=recipe,
            plugins=plugins,
            world=world,
            layout=lay_out(recipe, world.world_size),
            device=rank_device(recipe, plugins, world.local_rank),
            tokenizer=load_tokenizer(recipe.tokenizer),
        )

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding."""
        return self.recipe.padded_vocab_size(self.tokenizer.vocab_size)

    @property
    def pin_memory(self) -> bool:
        """True if batches are read into page-locked memory, from which the device copies while it computes."""
        return self.plugins.backend.pinned_memory()


def rank_device(recipe: Recipe, plugins: Plugins, local_rank: int) -> torch.device:
    """Return this rank's device, which must know the recipe's dtype and for which layers compile if they are to."""
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
    """Allow only torch's deterministic algorithms, or any; restore the setting afterwards."""
    # torch would also fill every tensor of torch.empty, which costs a pass over it; a read of uninitialized memory is a
    # bug in any mode.
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
