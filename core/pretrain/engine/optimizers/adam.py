"""Adam and AdamW: the settings for each engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pretrain.engine.optimizers.optimizer import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pretrain.engine.optimizers.optimizer import WeightRanks
    from pretrain.plugins.signatures import OptimizerKernels
    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.optimizer import OptimizerSection, StateDtype


@dataclass(frozen=True)
class AdamOptimizer(Optimizer):
    """See `Optimizer`."""

    is_decoupled: bool
    """AdamW: weight decay shrinks the weights beside Adam's step and is no part of the gradient."""

    def state_dtypes(self, section: OptimizerSection) -> Mapping[str, StateDtype]:
        """Return those of the section."""
        return {"exp_avg": section.exp_avg_dtype, "exp_avg_sq": section.exp_avg_sq_dtype}

    def for_megatron(self, recipe: Recipe, kernels: OptimizerKernels, ranks: WeightRanks) -> type[Any]:  # noqa: ARG002
        """Return the negotiated Adam."""
        return kernels.adam

    def megatron_config(self, section: OptimizerSection) -> dict[str, Any]:
        """Return arguments of OptimizerConfig."""
        return super().megatron_config(section) | {"decoupled_weight_decay": self.is_decoupled}

    def for_deepspeed(
        self, section: OptimizerSection, kernels: OptimizerKernels, stepping: Callable[[type[Any]], type[Any]]
    ) -> Callable[[list[dict[str, Any]]], Any]:
        """Return the negotiated Adam, or that of the host where the state is kept there."""
        adam: Any = stepping(kernels.adam)
        return partial(adam, **self.arguments(section))

    def arguments(self, section: OptimizerSection) -> dict[str, Any]:
        """Return what apex's FusedAdam is called with."""
        return {
            "lr": 0.0,  # the schedule sets it
            "betas": (section.adam_beta1, section.adam_beta2),
            "eps": section.adam_eps,
            "weight_decay": section.weight_decay,
            "adam_w_mode": self.is_decoupled,
        }
