"""Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", arXiv 2302.06675, algorithm 2)."""

from typing import Any

import torch

from pretrain.engine.optimizers.optimizer import Optimizer


class LionOptimizer(Optimizer):
    """One running mean for each weight; the update is the sign of it and the gradient."""

    states = ("exp_avg",)
    options = ("beta1", "beta2")

    def for_megatron(self, recipe: Any, kernels: Any, ranks: Any) -> type[Any]:
        """Return the class of the optimizer, with the recipe's options."""
        return type("Lion", (Lion,), dict(recipe.optimizer.options))


class Lion(torch.optim.Optimizer):
    """Called as apex's FusedAdam."""

    beta1, beta2 = 0.9, 0.99

    def __init__(self, params: Any, lr: float, weight_decay: float, **_of_adam: Any) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1  # counted in the group, from where a checkpoint takes it
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for weight in weights:
                self.state[weight].setdefault("exp_avg", torch.zeros_like(weight))
            if weights:
                self._update(group, weights)

    def _update(self, group: dict[str, Any], weights: list[torch.Tensor]) -> None:
        grads = [weight.grad for weight in weights]
        means = [self.state[weight]["exp_avg"] for weight in weights]
        updates = torch._foreach_lerp(means, grads, 1 - self.beta1)  # noqa: SLF001  one call for all weights
        torch._foreach_sign_(updates)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, updates, alpha=-group["lr"])
        torch._foreach_lerp_(means, grads, 1 - self.beta2)
