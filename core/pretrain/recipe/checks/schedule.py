"""The learning rate's warm-up and decay: one unit, one warm-up, in the right order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe.recipe import Recipe


def problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield what is wrong with warm-up, decay and the lowest learning rate."""
    schedule = recipe.schedule
    if schedule.min_lr > recipe.optimizer.lr:
        yield Problem("schedule.min_lr", f"{schedule.min_lr} is more than optimizer.lr {recipe.optimizer.lr}.")
    warmups = ("lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction")
    for key in [key for key in warmups if getattr(schedule, key) is not None][1:]:
        yield Problem(f"schedule.{key}", "this gives the warm-up a second time; choose one key.")
    if schedule.override_opt_param_scheduler and schedule.use_checkpoint_opt_param_scheduler:
        yield Problem(
            "schedule.use_checkpoint_opt_param_scheduler", "not with override_opt_param_scheduler: choose who wins."
        )
    train = recipe.train
    if (train.train_iters is None) != (train.train_samples is None):
        unit, other = ("iters", "samples") if train.train_samples is None else ("samples", "iters")
        yield from _units(recipe, unit, other)
        yield from _order(recipe, unit)


def _units(recipe: Recipe, unit: str, other: str) -> Iterator[Problem]:
    for name in ("lr_warmup", "lr_decay", "lr_wsd_decay"):
        if getattr(recipe.schedule, f"{name}_{other}") is not None:
            yield Problem(
                f"schedule.{name}_{other}",
                f"this does not go with train.train_{unit}; give schedule.{name}_{unit} instead.",
            )


def _order(recipe: Recipe, unit: str) -> Iterator[Problem]:
    schedule = recipe.schedule
    decay = getattr(schedule, f"lr_decay_{unit}") or getattr(recipe.train, f"train_{unit}")
    warmup = getattr(schedule, f"lr_warmup_{unit}") or 0
    last_part = getattr(schedule, f"lr_wsd_decay_{unit}")
    is_wsd = schedule.lr_decay_style == "WSD"
    if is_wsd and last_part is None:
        yield Problem(f"schedule.lr_wsd_decay_{unit}", "required with schedule.lr_decay_style: WSD.")
    if decay == 0:  # train.train_iters: 0, where no step follows the schedule
        return
    if warmup >= decay:
        yield Problem(
            f"schedule.lr_warmup_{unit}",
            f"{warmup} must be less than schedule.lr_decay_{unit}, which is {decay} (train.train_{unit} if not given).",
        )
    elif is_wsd and last_part is not None and last_part > decay - warmup:
        yield Problem(
            f"schedule.lr_wsd_decay_{unit}",
            f"{last_part} is more than the {decay - warmup} {unit} after the warm-up.",
        )
