"""Muon: the momentum of each matrix of the layers made orthogonal; AdamW for embeddings, output layer and vectors.

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; updates of AdamW's size after Liu et al.
2025 ("Muon is scalable for LLM training", arXiv 2502.16982). The weights of queries, keys and values are a matrix each,
and so are gate and up, and every expert's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, assert_never

from pretrain.engine.optimizers.optimizer import STATES, Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from pretrain.engine.optimizers.optimizer import WeightRanks
    from pretrain.plugins.signatures import OptimizerKernels, OrthogonalizeFn
    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.optimizer import OptimizerSection

KINDS = ("whole", "gated", "qkv")
"""Of parameter groups of matrices: how the rows of a weight are cut."""
MOMENTUM = "momentum_buffer"
"""State of a matrix, as torch.optim.Muon calls it: a checkpoint of Adam's is not taken for it, nor the other way."""
MOST_ENTRIES = 1 << 26
"""Of the matrices that are made orthogonal together, a quarter of a GiB: more would only take memory."""


class MuonOptimizer(Optimizer):
    """See `Optimizer`."""

    states = (MOMENTUM, *STATES)
    is_elementwise = False  # an update needs the whole matrix
    of_matrices = "whole"

    def for_megatron(self, recipe: Recipe, kernels: OptimizerKernels, ranks: WeightRanks) -> type[Any]:
        """Return the negotiated Adam, with Muon's step for groups of matrices."""
        from pretrain.reference.muon import orthogonalize  # noqa: PLC0415  imports torch

        matrices = MatrixStep(
            section=recipe.optimizer,
            heads=_rows_of_a_group(recipe),
            orthogonalize=kernels.orthogonalize or orthogonalize,
            ranks=ranks,
        )
        return type("Muon", (_Muon, kernels.adam), {"matrices": matrices})

    def kind_of(self, name: str, weight: Tensor) -> str:
        """Return the kind of a layer's matrix, "" for other weights."""
        if weight.dim() < 2 or not name.startswith("decoder.layers."):
            return ""
        if name.endswith("linear_qkv.weight"):
            return "qkv"
        return "gated" if getattr(weight, "partition_stride", 1) == 2 else "whole"

    def states_of(self, kind: str) -> tuple[str, ...]:
        """Return the names of the state: a matrix has its momentum alone."""
        return (MOMENTUM,) if kind in KINDS else STATES


def _rows_of_a_group(recipe: Recipe) -> tuple[int, int, int]:
    """Return the rows of queries, keys and values in one query group of linear_qkv."""
    model = recipe.model
    return model.num_attention_heads // model.num_query_groups * model.head_size, model.head_size, model.head_size


class _Muon:
    """Muon's step in front of an Adam's, which takes the groups without matrices."""

    matrices: ClassVar[MatrixStep]
    param_groups: list[dict[str, Any]]
    state: Mapping[Any, dict[str, Tensor]]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all parameters that have a gradient."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if group["kind"] not in KINDS]
        try:
            loss: float | None = super().step(closure)  # type: ignore[misc]  # the Adam's
        finally:
            self.param_groups = groups
        for group in groups:
            if group["kind"] in KINDS:
                group["step"] = group.get("step", 0) + 1
                for weights in _alike(group):
                    self.matrices.update(group, weights, [self.state[weight] for weight in weights])
        return loss


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixStep:
    """Muon's step for matrices.

    The ranks that hold the same weights each compute some of the updates, and broadcast them: all have every momentum.
    """

    section: OptimizerSection
    heads: tuple[int, int, int]  # rows of queries, keys and values in one query group
    orthogonalize: OrthogonalizeFn
    ranks: WeightRanks

    def update(self, group: Mapping[str, Any], weights: list[Tensor], states: list[dict[str, Tensor]]) -> None:
        """Update weights of one shape and division, [rows, columns] or [experts, rows, columns]."""
        import torch  # noqa: PLC0415  see `Optimizer`

        copies = self.ranks.copies(is_expert=group["is_expert_parallel"])
        share = max(1, min(MOST_ENTRIES // weights[0].numel(), -(-len(weights) // copies.size())))
        with torch.no_grad():
            for weight, state in zip(weights, states, strict=True):
                if not state:
                    state[MOMENTUM] = torch.zeros_like(weight)
            means = [state[MOMENTUM] for state in states]
            torch._foreach_lerp_(means, _grads(weights), 1 - self.section.muon_momentum)
            parts = [slice(first, first + share) for first in range(0, len(weights), share)]
            for first in range(0, len(parts), copies.size()):
                self._together(group, [(weights[part], means[part]) for part in parts[first : first + copies.size()]])

    def _together(self, group: Mapping[str, Any], parts: list[tuple[list[Tensor], list[Tensor]]]) -> None:
        """Update as many parts as ranks have copies, or fewer: each of these computes one."""
        import torch  # noqa: PLC0415
        import torch.distributed as dist  # noqa: PLC0415

        copies = self.ranks.copies(is_expert=group["is_expert_parallel"])
        own = copies.rank()
        computed = self._orthogonal(group, *parts[own]) if own < len(parts) else None
        for rank, (weights, _) in enumerate(parts):
            update = computed if rank == own else None
            if update is None:
                update = weights[0].new_empty(len(weights), *weights[0].shape)
            if copies.size() > 1:
                dist.broadcast(update, group_src=rank, group=copies)
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(weights, update.unbind(), alpha=-group["lr"])

    def _orthogonal(self, group: Mapping[str, Any], weights: list[Tensor], means: list[Tensor]) -> Tensor:
        """Return the scaled updates of the weights' matrices, stacked."""
        import torch  # noqa: PLC0415

        momentum = torch.stack(means)
        if self.section.muon_use_nesterov:
            momentum.lerp_(torch.stack(_grads(weights)), 1 - self.section.muon_momentum)
        rows, columns = momentum.shape[-2:]
        sizes = self._sizes(group["kind"], rows)
        cut = momentum.view(-1, rows // sum(sizes), sum(sizes), columns)
        parts = [part.flatten(1, 2) for part in cut.split(sizes, dim=2)]  # type: ignore[no-untyped-call]
        done = [self._of_part(part, weights[0], is_expert=group["is_expert_parallel"]) for part in parts]
        repeated = [part.view(len(cut), -1, size, columns) for part, size in zip(done, sizes, strict=True)]
        return torch.cat(repeated, dim=2).view_as(momentum)

    def _sizes(self, kind: str, rows: int) -> tuple[int, ...]:
        """Return the rows of each matrix in a repeated pattern of a weight's rows."""
        match kind:
            case "qkv":
                return self.heads
            case "gated":
                return rows // 2, rows // 2
            case "whole":
                return (rows,)
            case _:
                raise ValueError(kind)

    def _of_part(self, part: Tensor, weight: Tensor, *, is_expert: bool) -> Tensor:
        """Return this rank's part of the scaled update, for its part [k, m, n] of matrices."""
        ranks = self.ranks.parts(is_expert=is_expert)
        is_divided = getattr(weight, "tensor_model_parallel", False) and ranks.size() > 1
        dim = getattr(weight, "partition_dim", 0) + 3 - weight.dim()
        whole = _gathered(part, dim, ranks) if is_divided else part
        result = self.orthogonalize(whole, self.section.muon_num_ns_steps) * self._scale(*whole.shape[1:])
        return result.chunk(ranks.size(), dim)[ranks.rank()].contiguous() if is_divided else result

    def _scale(self, rows: int, columns: int) -> float:
        """Return the factor of an orthogonal matrix; the modes are those of Megatron-LM's --muon-scale-mode."""
        match mode := self.section.muon_scale_mode:
            case "spectral":
                squared = float(max(rows, columns))
            case "unit_rms_norm":
                squared = rows / columns
            case "shape_scaling":
                squared = max(1.0, rows / columns)
            case _:
                assert_never(mode)
        return math.sqrt(squared) * self.section.muon_extra_scale_factor


def _alike(group: Mapping[str, Any]) -> Iterator[list[Tensor]]:
    """Yield the weights that have a gradient, those of one shape and division together."""
    alike = defaultdict(list)
    for weight in group["params"]:
        if weight.grad is not None:
            divided = getattr(weight, "tensor_model_parallel", False) and getattr(weight, "partition_dim", 0)
            alike[weight.shape, divided].append(weight)
    yield from alike.values()


def _grads(weights: list[Tensor]) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def _gathered(part: Tensor, dim: int, ranks: Any) -> Tensor:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(ranks.size())]
    dist.all_gather(parts, part.contiguous(), group=ranks)
    return torch.cat(parts, dim)
