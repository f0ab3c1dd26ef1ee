"""The learning-rate schedule, counted in samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from pretrain.recipe import Recipe


@dataclass(frozen=True, slots=True)
class ScheduleSteps:
    """Lengths of the schedule in samples, as Megatron-LM counts them (iterations times the full global batch)."""

    warmup: int
    decay: int
    wsd_decay: int | None


def schedule_steps(recipe: Recipe) -> ScheduleSteps:
    """Return the schedule's lengths from iterations, samples or a fraction."""
    schedule, train = recipe.schedule, recipe.train
    batch = train.global_batch_size
    if train.train_samples is not None:
        decay = schedule.lr_decay_samples or train.train_samples
        warmup = schedule.lr_warmup_samples
        wsd_decay = schedule.lr_wsd_decay_samples
    else:
        decay = (schedule.lr_decay_iters or train.train_iters or 0) * batch
        warmup = None if schedule.lr_warmup_iters is None else schedule.lr_warmup_iters * batch
        wsd_decay = None if schedule.lr_wsd_decay_iters is None else schedule.lr_wsd_decay_iters * batch
    if schedule.lr_warmup_fraction is not None:
        warmup = int(schedule.lr_warmup_fraction * decay)
    return ScheduleSteps(warmup or 0, decay, wsd_decay)


_NAMES = {
    "max_lr": "optimizer.lr",
    "min_lr": "schedule.min_lr",
    "lr_warmup_steps": "the warm-up in samples",
    "lr_decay_steps": "the decay in samples",
    "lr_decay_style": "schedule.lr_decay_style",
    "end_wd": "optimizer.weight_decay",
}


def restore_schedule(schedule: OptimizerParamScheduler, saved: dict[str, Any], recipe: Recipe) -> list[str]:
    """Load a saved schedule, and return what is told of values that the recipe has otherwise.

    As in megatron-core they must be the same, unless the recipe says which win.

    Raises:
        CheckpointError: they differ, and the recipe does not say it.
    """
    ours, override = schedule.state_dict(), recipe.schedule.override_opt_param_scheduler
    differing = {name: (ours[key], saved[key]) for key, name in _NAMES.items() if ours[key] != saved[key]}
    if differing and not override and not recipe.schedule.use_checkpoint_opt_param_scheduler:
        raise _undecided(differing)
    schedule.num_steps = 0  # the saved ones are added
    schedule.load_state_dict(saved)
    for group in schedule.optimizer.param_groups:
        group |= {"max_lr": schedule.max_lr, "min_lr": schedule.min_lr}  # megatron-core's groups have their own
    schedule.step(increment=0)
    if override:
        return [
            f"{name}: using the recipe's {our}, not the checkpoint's {its}" for name, (our, its) in differing.items()
        ]
    return [f"{name}: using the checkpoint's {its}, not the recipe's {our}" for name, (our, its) in differing.items()]


def _undecided(differing: dict[str, tuple[Any, Any]]) -> CheckpointError:
    pairs = ", ".join(f"{name} {our} (checkpoint: {its})" for name, (our, its) in differing.items())
    return CheckpointError(
        f"the schedule is not the checkpoint's: {pairs}. Without lr_decay_* it is as long as the training.\n"
        "Give the values of before, or say which win: schedule.override_opt_param_scheduler: true, the recipe's, or "
        "schedule.use_checkpoint_opt_param_scheduler: true, the checkpoint's (a longer training ends at min_lr)."
    )


def build_schedule(recipe: Recipe, optimizer: Any) -> OptimizerParamScheduler:
    """Return megatron-core's scheduler; `restore_schedule` decides whose values win at a resume."""
    steps = schedule_steps(recipe)
    weight_decay = recipe.optimizer.weight_decay
    override = recipe.schedule.override_opt_param_scheduler
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=recipe.optimizer.lr,
        min_lr=recipe.schedule.min_lr,
        lr_warmup_steps=steps.warmup,
        lr_decay_steps=steps.decay,
        lr_decay_style=recipe.schedule.lr_decay_style,
        start_wd=weight_decay,
        end_wd=weight_decay,
        wd_incr_steps=0,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=not override,
        override_opt_param_scheduler=override,
        wsd_decay_steps=steps.wsd_decay,
        lr_wsd_decay_style=recipe.schedule.lr_wsd_decay_style,
    )
