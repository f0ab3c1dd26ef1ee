"""Sections `optimizer` and `schedule`: the optimizer, gradient clipping, and the learning rate over the training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from pydantic import Field

from pretrain.distributions import Role, registered
from pretrain.recipe.section import Bool, Float, Int, Section, Str

if TYPE_CHECKING:
    from pretrain.distributions import Installed

OptimizerName = Literal["adam", "adamw", "muon"]
"""An optimizer has a file in pretrain.engine.optimizers; see CONTRIBUTING.md."""
StateDtype = Literal["fp32", "bf16"]
OPTIMIZERS = "pretrain.optimizers"
"""Entry-point group of other distributions' optimizers; see docs/writing-an-optimizer.md."""


def installed_optimizers() -> list[Installed]:
    """Return the optimizers that other distributions bring, sorted by name; reading them imports none."""
    return registered(OPTIMIZERS, Role.OPTIMIZER)


class OptimizerSection(Section):
    """Adam or Muon, and gradient clipping."""

    name: OptimizerName | Str = "adamw"
    """adamw (decoupled weight decay; Megatron-LM's adam), adam (weight decay added to the gradient), muon (for matrices
    of the layers, adamw for all other weights), or an installed one's name."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of an installed optimizer, by its own names."""
    lr: Float = Field(gt=0)
    """Highest learning rate."""
    decoupled_lr: Float | None = Field(default=None, gt=0)
    """Highest learning rate of the embedding of tokens and of the output layer; by default that of other weights."""
    adam_beta1: Float = Field(default=0.9, ge=0, lt=1)
    """Decay of the mean of the gradient."""
    adam_beta2: Float = Field(default=0.999, ge=0, lt=1)
    """Decay of the mean of its square."""
    adam_eps: Float = Field(default=1e-8, gt=0)
    """Added to the denominator of the update."""
    exp_avg_dtype: StateDtype = "fp32"
    """How the mean of the gradient is kept; it is updated in fp32. bf16 rounds to nearest and takes half the memory."""
    exp_avg_sq_dtype: StateDtype = "fp32"
    """How the mean of its square is kept; bf16 needs an adam_beta2 below 1 - 2^-8."""
    muon_momentum: Float = Field(default=0.95, ge=0, lt=1)
    """Muon: decay of the mean of the gradient."""
    muon_use_nesterov: Bool = True
    """Muon: whether the gradient is added to its mean once more."""
    muon_num_ns_steps: Int = Field(default=5, gt=0)
    """Muon: steps of the Newton-Schulz iteration."""
    muon_scale_mode: Literal["spectral", "unit_rms_norm", "shape_scaling"] = "spectral"
    """Muon: factor of the update of m rows and n columns: sqrt(max(m, n)), sqrt(m / n) or sqrt(max(1, m / n))."""
    muon_extra_scale_factor: Float = Field(default=0.2, gt=0)
    """Muon: another factor; 0.2 with spectral gives updates of AdamW's size, so that its learning rates serve (arXiv
    2502.16982)."""
    weight_decay: Float = Field(default=0.01, ge=0)
    """Weight decay of matrices; biases and norms have none."""
    clip_grad: Float = Field(default=1.0, ge=0)
    """Gradients are scaled down to this norm over all weights; 0: they are not."""

    @property
    def own(self) -> OptimizerName | None:
        """The name, where the optimizer is one of this package; None where another distribution brings it."""
        return cast("OptimizerName", self.name) if self.name in get_args(OptimizerName) else None


class ScheduleSection(Section):
    """The learning rate over the training: a linear warm-up, then a decay from optimizer.lr to min_lr."""

    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "linear"
    """How the learning rate falls; WSD is warm-up, stable, decay."""
    min_lr: Float = Field(default=0.0, ge=0)
    """Lowest learning rate, kept after the decay."""
    decoupled_min_lr: Float | None = Field(default=None, ge=0)
    """Lowest learning rate of the weights that have optimizer.decoupled_lr; by default min_lr."""
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

    @property
    def lowest_decoupled_lr(self) -> float:
        """Lowest learning rate of the weights that have optimizer.decoupled_lr."""
        return self.min_lr if self.decoupled_min_lr is None else self.decoupled_min_lr
