"""The learning-rate schedule of a checkpoint, compared with the recipe's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    from pretrain.recipe import Recipe

_NAMES = {
    "max_lr": "optimizer.lr",
    "min_lr": "schedule.min_lr",
    "decoupled_lr": "optimizer.decoupled_lr",
    "decoupled_min_lr": "schedule.decoupled_min_lr",
    "lr_warmup_steps": "the warm-up in samples",
    "lr_decay_steps": "the decay in samples",
    "lr_decay_style": "schedule.lr_decay_style",
    "end_wd": "optimizer.weight_decay",
}
_NONE: dict[str, Any] = {"decoupled_lr": None, "decoupled_min_lr": None}
"""Rates of embedding and output layer where these have those of the others."""


def schedule_state(schedule: OptimizerParamScheduler) -> dict[str, Any]:
    """Return megatron-core's state, with the rates of embedding and output layer where they have some."""
    apart: dict[str, Any] | None = next(_apart(schedule), None)
    rates = {} if apart is None else {"decoupled_lr": apart["max_lr"], "decoupled_min_lr": apart["min_lr"]}
    return {**schedule.state_dict(), **rates}


def _apart(schedule: OptimizerParamScheduler) -> Iterator[dict[str, Any]]:
    return (group for group in schedule.optimizer.param_groups if group.get("is_decoupled_lr"))


def restore_schedule(schedule: OptimizerParamScheduler, saved: dict[str, Any], recipe: Recipe) -> list[str]:
    """Load a saved schedule; return a notice for each value that differs, as it may if the recipe chooses a side."""
    ours, saved = _NONE | schedule_state(schedule), _NONE | saved
    override = recipe.schedule.override_opt_param_scheduler
    if saved["lr_decay_style"] == ours["lr_decay_style"]:
        saved = saved | {key: ours[key] for key in _unused(recipe)}
    differing = {name: (ours[key], saved[key]) for key, name in _NAMES.items() if ours[key] != saved[key]}
    has_groups = (ours["decoupled_lr"] is None) == (saved["decoupled_lr"] is None)
    may_use = recipe.schedule.use_checkpoint_opt_param_scheduler and has_groups
    if differing and not override and not may_use:
        pairs = ", ".join(f"{name} {our} (checkpoint: {its})" for name, (our, its) in differing.items())
        msg = (
            f"the schedule differs from the checkpoint's: {pairs}. Without lr_decay_* the decay lasts for the whole "
            "training.\nRestore the values, or set schedule.override_opt_param_scheduler: true to use the recipe's, or "
            "schedule.use_checkpoint_opt_param_scheduler: true to use the checkpoint's (a longer training ends at "
            "min_lr)."
        )
        raise CheckpointError(msg)
    schedule.num_steps = 0  # load_state_dict adds the saved steps
    schedule.load_state_dict(saved)
    for group in schedule.optimizer.param_groups:
        group |= {"max_lr": schedule.max_lr, "min_lr": schedule.min_lr}  # megatron-core keeps copies in its groups
    chosen = ours if override else saved
    for group in _apart(schedule):
        group |= {"max_lr": chosen["decoupled_lr"], "min_lr": chosen["decoupled_min_lr"]}
    schedule.step(increment=0)
    if override:
        return [
            f"{name}: using the recipe's {our}, not the checkpoint's {its}" for name, (our, its) in differing.items()
        ]
    return [f"{name}: using the checkpoint's {its}, not the recipe's {our}" for name, (our, its) in differing.items()]


def continue_schedule(
    schedule: OptimizerParamScheduler, told: Mapping[str, Any], consumed_samples: int, recipe: Recipe
) -> list[str]:
    """Load a schedule of which a checkpoint tells a part, by megatron-core's names; the rest is the recipe's.

    A checkpoint that tells its rate and no decoupled_lr has none.
    """
    ours = schedule_state(schedule) | (_NONE if "max_lr" in told else {})
    known = {name: value for name, value in told.items() if name in ours or name in _NAMES}
    return restore_schedule(schedule, ours | {"num_steps": consumed_samples} | known, recipe)


def _unused(recipe: Recipe) -> tuple[str, ...]:
    """Return the values that the style of the decay does not use (OptimizerParamScheduler.get_lr), and may differ."""
    match style := recipe.schedule.lr_decay_style:
        case "constant":
            return ("lr_decay_steps", "min_lr", "decoupled_min_lr")
        case "linear" | "cosine" | "inverse-square-root" | "WSD":
            return ()
        case _:
            assert_never(style)
