"""Least number of devices for a recipe's own layout: more replicas, among which the optimizer's state may be split."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from pretrain.errors import RecipeError
from pretrain.recipe.layout import lay_out
from pretrain.tools.plan.plan import make_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.recipe import Recipe
    from pretrain.tools.plan.device import PlanDevice

LARGEST = 64
"""Replicas up to which is looked."""


def enough_devices(
    recipe: Recipe,
    device: PlanDevice,
    vocab_size: int,
    say: Callable[[str], None] = lambda text: None,  # noqa: ARG005
) -> int | None:
    """Return the least number of devices on which a recipe fits that does not fit on those of one replica.

    Made of full plans, of which it takes about six. The more replicas, the less each holds.

    Args:
        recipe: what is planned.
        device: with a memory of its own.
        vocab_size: entries of the tokenizer, before padding.
        say: is called with a line at first, and before each plan.

    Returns:
        None: it does not fit with up to `LARGEST` replicas.

    Raises:
        PretrainError: as `make_plan`.
    """
    sizes = [size for size in range(2, LARGEST + 1) if _is_legal(recipe, size * recipe.model_parallel_size)]

    def fits(size: int) -> bool:
        devices = size * recipe.model_parallel_size
        say(f"trying {devices} devices")
        return bool(make_plan(recipe, device, devices=devices, vocab_size=vocab_size).fits)

    if not sizes:
        return None
    replica = f"{recipe.model_parallel_size} device{'s' * (recipe.model_parallel_size > 1)}"
    say(f"it does not fit on {replica}; looking for the number that is enough")
    if not fits(sizes[-1]):
        return None
    return sizes[bisect_left(sizes, True, hi=len(sizes) - 1, key=fits)] * recipe.model_parallel_size


def _is_legal(recipe: Recipe, devices: int) -> bool:
    try:
        lay_out(recipe, devices)
    except RecipeError:
        return False
    return True
