"""Sections `optimizer` and `schedule`: the optimizer, gradient clipping, and the learning rate over the training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pretrain.recipe.section import Bool, Float, Int, Section

OptimizerName = Literal["adam", "adamw"]
"""An optimizer has a file in pretrain.engine.optimizers; see CONTRIBUTING.md."""


class OptimizerSection(Section):
    """Adam and gradient clipping."""

    name: OptimizerName = "adamw"
    """adamw (decoupled weight decay, what Megatron-LM calls adam) or adam (weight decay added to the gradient)."""
    lr: Float = Field(gt=0)
    """Highest learning rate."""
    adam_beta1: Float = Field(default=0.9, ge=0, lt=1)
    """Decay of the mean of the gradient."""
    adam_beta2: Float = Field(default=0.999, ge=0, lt=1)
    """Decay of the mean of its square."""
    adam_eps: Float = Field(default=1e-8, gt=0)
    """Added to the denominator of the update."""
    weight_decay: Float = Field(default=0.01, ge=0)
    """Weight decay of matrices; biases and norms have none."""
    clip_grad: Float = Field(default=1.0, ge=0)
    """Gradients are scaled down to this norm over all weights; 0: they are not."""


class ScheduleSection(Section):
    """The learning rate over the training: a linear warm-up, then a decay from optimizer.lr to min_lr."""

    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "linear"
    """How the learning rate falls; WSD is warm-up, stable, decay."""
    min_lr: Float = Field(default=0.0, ge=0)
    """Lowest learning rate, kept after the decay."""
    lr_warmup_iters: Int | None = Field(default=None, ge=0)
    """Length of the warm-up in iterations; without any of the three there is none."""
    lr_warmup_samples: Int | None = Field(default=None, ge=0)
    """Length of the warm-up in samples."""
    lr_warmup_fraction: Float | None = Field(default=None, ge=0, lt=1)
    """Length of the warm-up as a fraction of lr_decay_iters or lr_decay_samples."""
    lr_decay_iters: Int | None = Field(default=None, gt=0)
    """Iteration at which min_lr is reached, counted from the start; by default train.train_iters."""
    lr_decay_samples: Int | None = Field(default=None, gt=0)
    """Sample at which min_lr is reached, counted from the start; by default train.train_samples."""
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"
    """How the last part of WSD falls."""
    lr_wsd_decay_iters: Int | None = Field(default=None, gt=0)
    """Length of the last part of WSD in iterations."""
    lr_wsd_decay_samples: Int | None = Field(default=None, gt=0)
    """Length of the last part of WSD in samples."""
    override_opt_param_scheduler: Bool = False
    """Whether these values win over different ones of a loaded checkpoint."""
    use_checkpoint_opt_param_scheduler: Bool = False
    """Whether a loaded checkpoint's values win over these. Without either key, a difference is an error."""
