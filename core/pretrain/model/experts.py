"""A layer's experts: a router sends every token to some of them, on this rank or another, and adds up their results."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.module import MegatronModule
from torch import nn

from pretrain.model.layer import FeedForward
from pretrain.model.router import Router
from pretrain.model.weights import EXPERTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.plugins.signatures import ActivationFn, GroupedLinearFn
    from pretrain.recipe import Recipe


class MixtureOfExperts(MegatronModule):
    """In place of a layer's MLP.

    On the negotiated kernels; docs/design.md says why megatron-core's MoELayer is not used.
    """

    def __init__(self, config: Any, submodules: Any, *, recipe: Recipe, kernels: Kernels, planned: bool) -> None:
        super().__init__(config=config)
        tensor = parallel_state.get_tensor_model_parallel_group()
        sharing = parallel_state.get_tensor_and_context_parallel_group()
        self.router = Router(recipe, config, linear=kernels.linear_of("router"), choose=kernels.router, group=sharing)
        self.experts = Experts(
            recipe, config, grouped_linear=kernels.grouped_linear, activation=kernels.activation_of("expert")
        )
        self.shared_experts = None
        if shared := recipe.model.moe_shared_expert_intermediate_size:
            wide = copy(config)  # megatron-core's MLP reads one of its widths here
            wide.ffn_hidden_size = shared
            activation = kernels.activation_of("shared")
            self.shared_experts = FeedForward(wide, submodules, activation=activation, tp_group=tensor)
        self.permute, self.unpermute = kernels.moe_permute.permute, kernels.moe_permute.unpermute
        self.planned = planned
        self.exchange = RowExchange(self.experts.count, even=recipe.model.moe_router_topk if planned else None)

    def _computed(self, row_weights: Tensor) -> Tensor:
        """Return the places of rows that experts compute; in a plan, whose load is even, of all."""
        if self.planned:
            return torch.arange(len(row_weights), device=row_weights.device)
        return row_weights.isneginf().logical_not().nonzero().squeeze(1)

    def forward(self, hidden_states: Tensor, **_kwargs: Any) -> tuple[Tensor, None]:
        """Return [s, b, h] for [s, b, h], with sequence parallelism [s / t, b, h]; there is no bias."""
        tokens = hidden_states.flatten(0, 1)
        weights, chosen, counts = self.router(hidden_states)
        rows, row_weights, order = self.permute(tokens, chosen, weights)
        trip = self.exchange.plan(counts, tokens.shape[0])
        if self.router.drops_tokens:
            trip = _Limited(counts=trip.counts, trip=trip, rows=len(rows), kept=self._computed(row_weights))
        computed = self.experts(trip.there(rows), trip.there(row_weights), trip.counts)
        output = self.unpermute(trip.back(computed), order, tokens.shape[0]).view_as(hidden_states)
        if self.shared_experts is not None:
            output = output + self.shared_experts(hidden_states)[0]
        return output, None


class ExpertLinear(nn.Module):
    """One linear of all experts of this rank: weights [experts, out of this rank, in of this rank], without biases."""

    def __init__(
        self, first: int, shape: Sequence[int], *, dim: int, stride: int, config: Any, kernel: GroupedLinearFn
    ) -> None:
        """Take the number of the first expert, over all ranks, and how the rank's part is cut out, along `dim`."""
        super().__init__()
        self.kernel = kernel
        self.weight = nn.Parameter(torch.empty(*shape))
        # Parallel even where one rank has whole experts: ranks have different ones, and each counts in a norm.
        set_tensor_model_parallel_attributes(tensor=self.weight, is_parallel=True, dim=dim, stride=stride)
        setattr(self.weight, EXPERTS, (first, parallel_state.get_expert_tensor_parallel_rank()))
        # Whether gradients are summed over the data-parallel ranks; if not, over those with equal experts.
        # megatron-core asks for expert_model_parallel_size over 1 alone, and forgets tensor-parallel ranks that do
        # not share each expert.
        is_split_as_layers = config.expert_tensor_parallel_size == config.tensor_model_parallel_size
        self.weight.allreduce = config.expert_model_parallel_size == 1 and is_split_as_layers  # type: ignore[attr-defined]

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return [rows, out]; a call of a module, which waits for its weights where they are still gathered."""
        return self.kernel(rows, self.weight, counts)


class Experts(MegatronModule):
    """The experts of this rank, each an MLP without biases: two grouped linears around the activation."""

    def __init__(
        self, recipe: Recipe, config: Any, *, grouped_linear: GroupedLinearFn, activation: ActivationFn
    ) -> None:
        super().__init__(config=config)
        model, parallel = recipe.model, recipe.parallel
        self.activation = activation
        self.count = (model.num_experts or 0) // parallel.expert_model_parallel_size
        self.first = self.count * parallel_state.get_expert_model_parallel_rank()
        self.gates = 2 if config.gated_linear_unit else 1
        width = model.moe_ffn_hidden_size // parallel.expert_tensor_parallel_size
        up, down = (self.count, self.gates * width, model.hidden_size), (self.count, model.hidden_size, width)
        linear = partial(ExpertLinear, self.first, config=config, kernel=grouped_linear)
        self.linear_fc1 = linear(up, dim=1, stride=self.gates)
        self.linear_fc2 = linear(down, dim=2, stride=1)

    def forward(self, rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
        """Return [rows, h] for rows [rows, h] by expert, their weights fp32 [rows], and each expert's count, int64.

        With expert tensor parallelism a part of the sum.
        """
        inner = self.activation(self.linear_fc1(rows, counts), None)
        weighted = (inner * weights.unsqueeze(-1)).to(inner.dtype)  # in fp32, and rounded once
        output: Tensor = self.linear_fc2(weighted, counts)
        return output

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        """Return the weights under the names of Megatron-LM's SequentialMLP: [(layers,) experts, out, in]."""
        del metadata
        names = {"linear_fc1": (1, self.gates), "linear_fc2": (2, 1)}
        return {
            f"{prefix}{name}.weight": self._sharded(
                f"{prefix}experts.{name}.weight", getattr(self, name).weight, dim, gates, sharded_offsets
            )
            for name, (dim, gates) in names.items()
        }

    def _sharded(self, key: str, weight: Tensor, dim: int, gates: int, before: Any) -> Any:
        """Return a whole parameter, which the optimizer finds by its identity; it is cut when it is written."""
        axis = len(before)
        rank, ranks = parallel_state.get_expert_tensor_parallel_rank(), self.config.expert_tensor_parallel_size
        experts = (axis, self.first // self.count, self.config.expert_model_parallel_size)
        replica = (0, 0, parallel_state.get_expert_data_parallel_rank())

        def build(key: str, whole: Tensor, replica_id: Any, flattened_range: Any) -> list[ShardedTensor]:
            del flattened_range
            return [
                ShardedTensor.from_rank_offsets(
                    key,
                    part,
                    *before,
                    experts,
                    (axis + dim, rank + gate * ranks, gates * ranks),
                    replica_id=replica_id,
                    prepend_axis_num=axis,
                )
                for gate, part in enumerate(whole.chunk(gates, dim) if gates > 1 else [whole])
            ]

        if gates == 1:
            return build(key, weight, replica, None)[0]
        return ShardedTensorFactory(key, weight, build, lambda parts: torch.cat(list(parts), dim), replica)


class RowExchange:
    """Sends rows to the ranks that have their experts, by the counts of each pair of ranks."""

    def __init__(self, experts: int, even: int | None) -> None:
        """Take the experts of each rank; `even`: experts of a token, whose load is taken as even (a plan's)."""
        self.experts, self.even = experts, even
        self.group = parallel_state.get_expert_tensor_and_model_parallel_group()
        self.parts = parallel_state.get_expert_tensor_parallel_world_size()

    def plan(self, counts: Tensor, tokens: int) -> Trip:
        """Return the trip of the rows of `tokens` tokens, of which each expert has counts, int64 [E].

        Waits for the device once where experts are on several ranks.
        """
        if self.group.size() == 1:
            return Trip(counts=counts)
        # Rank r of the group has part r % parts of the experts of expert-parallel rank r // parts.
        to_ranks = counts.view(-1, self.experts).repeat_interleave(self.parts, dim=0)
        from_ranks = torch.empty_like(to_ranks)
        dist.all_to_all_single(from_ranks, to_ranks, group=self.group)
        sent, received = self._sizes(to_ranks, from_ranks, tokens)
        by_expert, by_rank = _orders(from_ranks, sum(received))
        return _Exchanged(
            counts=from_ranks.sum(dim=0),
            sent=sent,
            received=received,
            by_expert=by_expert,
            by_rank=by_rank,
            parts=self.parts,
            group=self.group,
        )

    def _sizes(self, to_ranks: Tensor, from_ranks: Tensor, tokens: int) -> tuple[list[int], list[int]]:
        if self.even is not None:
            rows, owners = tokens * self.even, to_ranks.shape[0] // self.parts
            # Of rows that do not divide, the first ranks have one more.
            even = [rows // owners + (owner < rows % owners) for owner in range(owners) for _ in range(self.parts)]
            return even, [even[self.group.rank()]] * len(even)
        sent, received = torch.stack((to_ranks.sum(dim=1), from_ranks.sum(dim=1))).tolist()
        return sent, received


def _orders(from_ranks: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return the indices that sort received rows by expert, then rank, and those that sort them back."""
    # Each block of one rank and expert moves by the difference of its starts in the two orders.
    starts = (from_ranks.flatten().cumsum(dim=0) - from_ranks.flatten()).view_as(from_ranks)
    turned = from_ranks.t()
    starts_by_expert = (turned.flatten().cumsum(dim=0) - turned.flatten()).view_as(turned).t()
    moves = (starts_by_expert - starts).flatten().repeat_interleave(from_ranks.flatten(), output_size=rows)
    places = torch.arange(rows, device=from_ranks.device)
    by_rank = places + moves
    return torch.empty_like(places).scatter_(0, by_rank, places), by_rank


@dataclass(frozen=True, kw_only=True, slots=True)
class Trip:
    """Rows that stay: this rank has all experts whole. `counts`: rows of each of this rank's experts, int64."""

    counts: Tensor

    def there(self, rows: Tensor) -> Tensor:
        """Return the rows of this rank's experts, by expert, for this rank's rows by expert."""
        return rows

    def back(self, rows: Tensor) -> Tensor:
        """Return the results of this rank's rows for those of its experts."""
        return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class _Limited(Trip):
    """The trip of some rows of all: the result of one that is not kept is 0."""

    trip: Trip
    rows: int
    kept: Tensor  # places of those that travel, int64

    def there(self, rows: Tensor) -> Tensor:
        return self.trip.there(rows.index_select(0, self.kept))

    def back(self, rows: Tensor) -> Tensor:
        results = self.trip.back(rows)
        return results.new_zeros(self.rows, *results.shape[1:]).index_copy(0, self.kept, results)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Exchanged(Trip):
    sent: list[int]  # rows to each rank of the group
    received: list[int]
    by_expert: Tensor
    by_rank: Tensor
    parts: int  # ranks that share an expert: each gets the expert's rows, and returns a part of the sum
    group: Any

    def there(self, rows: Tensor) -> Tensor:
        if self.parts > 1:
            blocks = torch.split(rows, self.sent[:: self.parts])
            rows = torch.cat([block for block in blocks for _ in range(self.parts)])
        arrived: Tensor = _AllToAll.apply(rows, self.sent, self.received, self.group)  # type: ignore[no-untyped-call]
        return _sorted(arrived, self.by_expert, self.by_rank)

    def back(self, rows: Tensor) -> Tensor:
        leaving = _sorted(rows, self.by_rank, self.by_expert)
        results: Tensor = _AllToAll.apply(leaving, self.received, self.sent, self.group)  # type: ignore[no-untyped-call]
        if self.parts == 1:
            return results
        blocks = torch.split(results, self.sent)
        sums = [torch.stack(blocks[at : at + self.parts]).sum(dim=0) for at in range(0, len(blocks), self.parts)]
        return torch.cat(sums)


def _sorted(rows: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
    result: Tensor = _Sort.apply(rows, index, inverse)  # type: ignore[no-untyped-call]
    return result


class _Sort(torch.autograd.Function):
    """Its backward pass selects too; that of indexing would add, in any order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grads[0].index_select(0, inverse), None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _all_to_all(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(grads[0], ctx.received, ctx.sent, ctx.group), None, None, None


def _all_to_all(rows: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
    return arrived
