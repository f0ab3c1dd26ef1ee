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
    from torch.distributed import ProcessGroup

    from pretrain.engine.optimizers.optimizer import WeightRanks
    from pretrain.plugins.signatures import OptimizerKernels, OrthogonalizeFn
    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.optimizer import OptimizerSection

KINDS = ("whole", "gated", "qkv")
"""Of parameter groups of matrices: how the rows of a weight are cut."""
MOMENTUM = "momentum_buffer"
"""State of a matrix, as torch.optim.Muon calls it: a checkpoint of Adam's is not taken for it, nor the other way."""
MOST_ENTRIES = 1 << 26
"""Of the weights that are made orthogonal together, a quarter of a GiB, unless one alone has more, such as a rank's
experts: several times as much is taken in passing."""


class MuonOptimizer(Optimizer):
    """See `Optimizer`."""

    states = (MOMENTUM, *STATES)
    kinds = ("", *KINDS)

    def for_megatron(self, recipe: Recipe, kernels: OptimizerKernels, ranks: WeightRanks) -> type[Any]:
        """Return the negotiated Adam, with Muon's step for groups of matrices."""
        from pretrain.reference.muon import orthogonalize  # noqa: PLC0415  imports torch

        matrices = MatrixStep(
            section=recipe.optimizer,
            heads=_rows_of_a_group(recipe),
            orthogonalize=kernels.orthogonalize or orthogonalize,
            ranks=ranks,
            new_state=self.new_state,
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
        self.matrices.update([group for group in groups if group["kind"] in KINDS], self.state)
        return loss


@dataclass(frozen=True, slots=True)
class _Job:
    """Weights of one shape and division, [rows, columns] or of experts [e, rows, columns]: one rank's updates."""

    group: Mapping[str, Any]
    weights: list[Tensor]
    momenta: list[Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixStep:
    """Muon's step for matrices.

    The ranks that hold the same weights each compute some of the updates, and broadcast them: all have every momentum.
    """

    section: OptimizerSection
    heads: tuple[int, int, int]  # rows of queries, keys and values in one query group
    orthogonalize: OrthogonalizeFn
    ranks: WeightRanks
    new_state: Callable[[OptimizerSection, Tensor, str], dict[str, Tensor]]

    def update(self, groups: list[dict[str, Any]], state: Mapping[Any, dict[str, Tensor]]) -> None:
        """Update the weights of parameter groups of matrices, which have all been given a gradient or none."""
        import torch  # noqa: PLC0415  see `Optimizer`

        with torch.no_grad():
            for is_expert in sorted({group["is_expert_parallel"] for group in groups}):
                copies = self.ranks.copies(is_expert=is_expert)
                own = [group for group in groups if group["is_expert_parallel"] == is_expert]
                jobs = [job for group in own for job in self._jobs(group, state, copies.size())]
                jobs.sort(key=lambda job: -job.weights[0].numel())  # those of a round take about as long
                for first in range(0, len(jobs), copies.size()):
                    self._together(jobs[first : first + copies.size()], copies)

    def _jobs(self, group: dict[str, Any], state: Mapping[Any, dict[str, Tensor]], ranks: int) -> Iterator[_Job]:
        """Move the momenta of a group, and yield what so many ranks have to do."""
        import torch  # noqa: PLC0415

        group["step"] = group.get("step", 0) + 1
        for weights in _alike(group):
            for weight in weights:
                if not state[weight]:
                    state[weight].update(self.new_state(self.section, weight, group["kind"]))
            momenta = [state[weight][MOMENTUM] for weight in weights]
            torch._foreach_lerp_(momenta, _grads(weights), 1 - self.section.muon_momentum)
            count = max(1, min(MOST_ENTRIES // weights[0].numel(), -(-len(weights) // ranks)))
            for first in range(0, len(weights), count):
                yield _Job(group, weights[first : first + count], momenta[first : first + count])

    def _together(self, jobs: list[_Job], copies: ProcessGroup) -> None:
        """Do at most as many jobs as ranks hold the same weights: each computes one, and broadcasts it."""
        import torch  # noqa: PLC0415
        import torch.distributed as dist  # noqa: PLC0415

        own = copies.rank()
        computed = self._orthogonal(jobs[own]) if own < len(jobs) else None
        for rank, job in enumerate(jobs):
            update = computed if rank == own else None
            if update is None:
                update = job.weights[0].new_empty(len(job.weights), *job.weights[0].shape)
            if copies.size() > 1:
                dist.broadcast(update, group_src=rank, group=copies)
            torch._foreach_mul_(job.weights, 1 - job.group["lr"] * job.group["weight_decay"])
            torch._foreach_add_(job.weights, update.unbind(), alpha=-job.group["lr"])

    def _orthogonal(self, job: _Job) -> Tensor:
        """Return the scaled updates of the weights' matrices, stacked."""
        import torch  # noqa: PLC0415

        stacked = torch.stack(job.momenta)
        if self.section.muon_use_nesterov:
            stacked.lerp_(torch.stack(_grads(job.weights)), 1 - self.section.muon_momentum)
        rows, columns = stacked.shape[-2:]
        sizes = self._sizes(job.group["kind"], rows)
        repeated = stacked.view(-1, rows // sum(sizes), sum(sizes), columns)
        cut = [each.flatten(1, 2) for each in repeated.split(sizes, dim=2)]  # type: ignore[no-untyped-call]
        is_expert = job.group["is_expert_parallel"]
        done = [self._of_matrices(each, job.weights[0], is_expert=is_expert) for each in cut]
        put_back = [each.view(len(repeated), -1, size, columns) for each, size in zip(done, sizes, strict=True)]
        return torch.cat(put_back, dim=2).view_as(stacked)

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

    def _of_matrices(self, part: Tensor, weight: Tensor, *, is_expert: bool) -> Tensor:
        """Return this rank's part of the scaled update, for its part [k, m, n] of matrices.

        All tensor-parallel ranks gather the same whole matrices, and compute the same.
        """
        ranks = self.ranks.parts(is_expert=is_expert)
        divided = _division(weight)
        is_divided = divided is not None and ranks.size() > 1
        dim = (divided or 0) + 3 - weight.dim()
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
            alike[weight.shape, _division(weight)].append(weight)
    yield from alike.values()


def _division(weight: Tensor) -> int | None:
    """Return the dimension along which tensor-parallel ranks have parts of a weight; None: all have the same."""
    return getattr(weight, "partition_dim", 0) if getattr(weight, "tensor_model_parallel", False) else None


def _grads(weights: list[Tensor]) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def _gathered(part: Tensor, dim: int, ranks: Any) -> Tensor:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(ranks.size())]
    dist.all_gather(parts, part.contiguous(), group=ranks)
    return torch.cat(parts, dim)
