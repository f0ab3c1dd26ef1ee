"""The router of a layer with experts, the losses that even out their load, and the load."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from torch import nn
from torch.utils.checkpoint import checkpoint

from pretrain.model.weights import PARTIAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.plugins.signatures import LinearFn, RouterFn
    from pretrain.recipe import Recipe

LOSSES = ("load_balancing_loss", "z_loss")


class Router(MegatronModule):
    """Chooses the experts of each token; every rank has the whole router, and routes its own tokens.

    The ranks of the group, tensor and context parallel, have the tokens of a micro-batch together. `load`, `dropped`
    and `losses` add up what the micro-batches of a training step had, until `pretrain.engine.experts` takes them.
    """

    expert_bias: Tensor | None

    def __init__(self, recipe: Recipe, config: Any, *, linear: LinearFn, choose: RouterFn, group: Any) -> None:
        super().__init__(config=config)
        model = recipe.model
        self.model, self.linear, self.choose, self.group = model, linear, choose, group
        self.weight = nn.Parameter(torch.empty(model.num_experts or 0, model.hidden_size))
        setattr(self.weight, PARTIAL, config.sequence_parallel)
        bias = torch.zeros(model.num_experts or 0) if model.moe_router_enable_expert_bias else None
        self.register_buffer("expert_bias", bias)
        self.load = torch.zeros(model.num_experts or 0, dtype=torch.int64)
        self.dropped = torch.zeros((), dtype=torch.int64)
        self.losses = torch.zeros(len(LOSSES))
        # By token, gradients are sums that are divided by the step's tokens: a loss counts as often as it has tokens.
        self.weighs_by_tokens = recipe.train.calculate_per_token_loss
        self.copies = recipe.parallel.context_parallel_size  # as `pretrain.engine.forward` counts the other losses

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights, fp32 [n, E], the choice, bool [n, E], and how many tokens each expert computes, int64.

        For [s, b, h] with n = s b tokens. The weight of a choice that is dropped is minus infinity.
        """
        logits = self._logits(hidden).flatten(0, 1)
        weights, chosen = self.choose(logits, self.expert_bias)
        load = counts = chosen.sum(dim=0)
        if self.drops_tokens:
            kept = self._within_capacity(weights.detach(), chosen)
            weights, counts = weights.masked_fill(chosen & ~kept, -torch.inf), kept.sum(dim=0)
        if self.training and torch.is_grad_enabled():  # once under recomputation, whose first pass has no gradients
            self.load += load
            if self.drops_tokens:
                self.dropped += (load - counts).sum()
            weights = self._with_losses(weights, logits, hidden.shape[1])
        return weights, chosen, counts

    @property
    def drops_tokens(self) -> bool:
        """Whether some choices may be dropped: in training, with a capacity."""
        return self.training and self.model.moe_expert_capacity_factor is not None

    def _within_capacity(self, weights: Tensor, chosen: Tensor) -> Tensor:
        """Return the choice without what is beyond an expert's capacity, bool [n, E].

        As `apply_router_token_dropping` in megatron-core, but of all tokens of the micro-batch, where that function
        counts those of one tensor-parallel rank.
        """
        model, factor = self.model, self.model.moe_expert_capacity_factor or 0.0
        is_by_weight = model.moe_token_drop_policy == "probs"  # noqa: S105  no password
        worth = weights if is_by_weight else torch.ones_like(weights)
        every, ranks = worth.masked_fill(~chosen, -torch.inf), self.group.size()
        if ranks > 1:
            own, every = every, every.new_empty(ranks * len(every), every.shape[1])
            dist.all_gather_into_tensor(every, own, group=self.group)
        capacity = math.ceil(every.shape[0] * model.moe_router_topk / every.shape[1] * factor)
        first = every.argsort(dim=0, descending=True, stable=True)[:capacity]
        within = torch.zeros_like(every, dtype=torch.bool).scatter_(0, first, value=True)
        kept: Tensor = chosen & within.chunk(ranks)[self.group.rank()]
        return kept

    def _logits(self, hidden: Tensor) -> Tensor:
        if hidden.dtype == torch.float32:
            return self.linear(hidden, self.weight)
        # Computed again in the backward pass, since the fp32 copy would stay until then, twice the size of `hidden`.
        again: Callable[..., Any] = checkpoint
        logits: Tensor = again(self._in_fp32, hidden, self.weight, use_reentrant=False, preserve_rng_state=False)
        return logits

    def _in_fp32(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return self.linear(hidden.float(), weight.float())

    def _with_losses(self, weights: Tensor, logits: Tensor, samples: int) -> Tensor:
        """Return the weights with this rank's part of the losses, whose gradients start in the backward pass."""
        tokens = logits.shape[0] * self.group.size()
        for number, loss in enumerate((self._load_balancing(logits, samples), self._z(logits, tokens))):
            if loss is None:
                continue
            self.losses[number] += loss.detach()
            scaled = loss * (tokens * self.copies) if self.weighs_by_tokens else loss
            weights = MoEAuxLossAutoScaler.apply(weights, scaled)
        return weights

    def _load_balancing(self, logits: Tensor, samples: int) -> Tensor | None:
        """Return E / (k n^2) sum_i f_i P_i times its coefficient.

        f_i counts the tokens of expert i and P_i sums its scores, which sum to 1 for a token, over the n tokens of the
        micro-batch; with seq_aux_loss over those of a sequence, and the mean of all sequences. As in megatron-core's
        `switch_load_balancing_loss_func` and `compute_routing_scores_for_aux_loss`, neither groups nor the bias count.
        """
        kind, model = self.model.moe_router_load_balancing_type, self.model
        if kind == "none":
            return None
        scores = logits.softmax(dim=-1)
        if model.moe_router_score_function == "sigmoid":
            scores = logits.sigmoid()
            scores = scores / (scores.sum(dim=-1, keepdim=True) + 1e-20)
        best = torch.zeros_like(scores).scatter_(1, scores.detach().topk(model.moe_router_topk, dim=-1).indices, 1.0)
        sequences = samples if kind == "seq_aux_loss" else 1
        counts, sums = (x.view(-1, sequences, x.shape[-1]).sum(dim=0) for x in (best, scores))
        if self.group.size() > 1:
            dist.all_reduce(counts, group=self.group)
        tokens = logits.shape[0] * self.group.size() // sequences
        factor = model.moe_aux_loss_coeff * scores.shape[-1] / (model.moe_router_topk * tokens**2 * sequences)
        loss: Tensor = (counts * sums).sum() * factor
        return loss

    def _z(self, logits: Tensor, tokens: int) -> Tensor | None:
        coefficient = self.model.moe_z_loss_coeff
        return None if coefficient is None else logits.logsumexp(dim=-1).square().sum() * (coefficient / tokens)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Router:
        """Keep the bias, the load and the losses in their dtypes, whichever that of the model is."""
        bias = self.expert_bias
        super()._apply(fn, recurse)
        device = self.weight.device
        self.expert_bias = None if bias is None else bias.to(device)
        self.load, self.dropped, self.losses = (each.to(device) for each in (self.load, self.dropped, self.losses))
        return self
