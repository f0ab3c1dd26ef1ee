"""The learning-rate schedule, counted in samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

if TYPE_CHECKING:
    from pretrain.recipe import Recipe


def schedule_steps(recipe: Recipe) -> tuple[int, int, int | None]:
    """Return the length of warm-up, decay and WSD's decay, in samples."""
    # Counted as in Megatron-LM: iterations times the full global batch.
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
    if decay == 0:  # train.train_iters: 0, and megatron-core wants a decay that ends after the warm-up
        decay = (warmup or 0) + batch
    return warmup or 0, decay, wsd_decay


def build_schedule(recipe: Recipe, optimizer: Any) -> OptimizerParamScheduler:
    """Return megatron-core's scheduler; `pretrain.checkpoint.saved_schedule` decides whose values win at a resume."""
    warmup, decay, wsd_decay = schedule_steps(recipe)
    weight_decay = recipe.optimizer.weight_decay
    override = recipe.schedule.override_opt_param_scheduler
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=recipe.optimizer.lr,
        min_lr=recipe.schedule.min_lr,
        lr_warmup_steps=warmup,
        lr_decay_steps=decay,
        lr_decay_style=recipe.schedule.lr_decay_style,
        start_wd=weight_decay,
        end_wd=weight_decay,
        wd_incr_steps=0,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=not override,
        override_opt_param_scheduler=override,
        wsd_decay_steps=wsd_decay,
        lr_wsd_decay_style=recipe.schedule.lr_wsd_decay_style,
    )
