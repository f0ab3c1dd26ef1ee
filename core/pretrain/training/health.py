"""Errors of a training that cannot recover: non-finite values, and overflow at the smallest loss scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.errors import NotFiniteError, TrainingError

if TYPE_CHECKING:
    from pretrain.engine.protocol import Engine
    from pretrain.recipe import Recipe
    from pretrain.training.progress import Progress
    from pretrain.training.reporting.interval import Interval, Totals
    from pretrain.training.saving import Saving

MAX_CONSECUTIVE_OVERFLOWS = 50
"""Consecutive overflows at the smallest loss scale after which a training ends with an error."""


def is_broken(recipe: Recipe, totals: Totals, interval: Interval) -> bool:
    """Say whether the interval has a loss or gradients that are not finite, which only fp16 recovers from.

    Without a loss scale DeepSpeed skips a step that megatron-core would take, with gradients that are not finite.
    """
    return recipe.precision.dtype != "fp16" and bool(totals.nan_iterations or interval.skipped_iterations)


def not_finite(interval: Interval, progress: Progress, saving: Saving | None, since: str) -> NotFiniteError:
    """Return the error of a loss, gradients or weights that are not finite; `since` says where they began, if known."""
    latest = None if saving is None else saving.folder.latest()
    start = "There is no checkpoint." if latest is None else f"The latest checkpoint is iteration {latest}."
    # After a logged line the interval is empty: the weights alone, before they are saved, are not finite.
    within = f"within the {interval.iterations} iterations up to" if interval.iterations else "after iteration"
    return NotFiniteError(
        f"loss, gradients or weights are not finite {since or f'{within} {progress.iteration}'}. {start}\n"
        "Lower optimizer.lr or lengthen the warm-up, and start again from there; where some ranks were first, suspect "
        "their devices."
    )


def check_loss_scale(recipe: Recipe, engine: Engine, interval: Interval, progress: Progress) -> None:
    """Check that steps do not keep overflowing at the smallest loss scale.

    Raises:
        TrainingError: they do.
    """
    precision, skipped = recipe.precision, interval.skipped_in_a_row
    smallest = precision.min_loss_scale if precision.loss_scale is None else precision.loss_scale
    if skipped >= MAX_CONSECUTIVE_OVERFLOWS and engine.loss_scale <= smallest:
        msg = (
            f"the last {skipped} iterations up to {progress.iteration} overflowed and were skipped, at the "
            f"smallest loss scale, {smallest:g}.\nLower optimizer.lr, or train with precision.dtype: bf16."
        )
        raise TrainingError(msg)
