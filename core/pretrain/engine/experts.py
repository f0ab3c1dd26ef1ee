"""The load of experts and the losses of routers in a step, over all ranks, and the biases that follow from the load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pretrain.model.router import LOSSES, Router

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from pretrain.recipe import Recipe

METRICS = ("moe_load_balancing_loss", "moe_z_loss", "moe_most_loaded", "moe_least_loaded", "moe_dropped")
NOT_MEASURED: Mapping[str, None] = dict.fromkeys(METRICS)


class ExpertLoad:
    """Adds up what the routers of all ranks counted in a step; nothing waits for the device."""

    def __init__(self, recipe: Recipe, models: Sequence[nn.Module], device: torch.device) -> None:
        """Find the routers of this rank's model chunks."""
        self._model, self._device = recipe.model, device
        self._layers = [layer for layer, has in enumerate(self._model.layers_with_experts) if has]
        has_z = self._model.moe_z_loss_coeff is not None
        self._has_losses = (self._model.moe_router_load_balancing_type != "none", has_z)  # in the order of LOSSES
        self._places = torch.tensor(self._layers, device=device)
        self._routers = {
            self._layers.index(layer.layer_number - 1): module
            for model in models
            for layer in getattr(model, "decoder").layers  # noqa: B009  megatron-core's GPTModel is untyped
            for module in layer.modules()
            if isinstance(module, Router)
        }

    def take(self, num_microbatches: int, replicas: int, *, counts: bool) -> Mapping[str, Tensor | None]:
        """Return the step's metrics, and move the biases if the step `counts`; collective over all ranks."""
        if not self._layers:
            return NOT_MEASURED
        experts = self._model.num_experts or 0
        counted = torch.zeros(len(self._layers), experts + 1, dtype=torch.int64, device=self._device)
        load, dropped = counted[:, :-1], counted[:, -1]
        losses = torch.zeros(len(self._layers), len(LOSSES), device=self._device)
        for place, router in self._routers.items():
            load[place], dropped[place], losses[place] = router.load, router.dropped, router.losses
        dist.all_reduce(counted)
        if any(self._has_losses):
            dist.all_reduce(losses)
        for place, router in self._routers.items():
            if counts and router.expert_bias is not None:
                self._move(router.expert_bias, load[place])
        self.clear()
        means = (losses / (num_microbatches * replicas)).unbind(dim=1)
        balance, z = (self._by_layer(loss) if has else None for loss, has in zip(means, self._has_losses, strict=True))
        total = load.sum(dim=1)
        relative = load * experts / total.unsqueeze(1)
        has_capacity = self._model.moe_expert_capacity_factor is not None
        return {
            "moe_load_balancing_loss": balance,
            "moe_z_loss": z,
            "moe_most_loaded": self._by_layer(relative.amax(dim=1)),
            "moe_least_loaded": self._by_layer(relative.amin(dim=1)),
            "moe_dropped": self._by_layer(dropped / total) if has_capacity else None,
        }

    def _by_layer(self, values: Tensor) -> Tensor:
        """Return fp32 [layers of the model], nan for those without experts."""
        everywhere = torch.full((self._model.num_layers,), torch.nan, device=self._device)
        everywhere[self._places] = values
        return everywhere

    def clear(self) -> None:
        """Forget what was counted."""
        for router in self._routers.values():
            router.load.zero_()
            router.dropped.zero_()
            router.losses.zero_()

    def _move(self, bias: Tensor, load: Tensor) -> None:
        """Raise the biases of experts below the mean load and lower the others' (arXiv:2408.15664, algorithm 1)."""
        below = (load.sum() - load * load.numel()).sign()  # in whole numbers, without rounding
        bias.add_(below, alpha=self._model.moe_router_bias_update_rate)
