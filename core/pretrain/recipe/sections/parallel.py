"""Sections `parallel` and `recompute`: how the model is laid over the ranks, and activations that are not kept."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pretrain.recipe.section import Bool, Int, Section


def _tensor_model_parallel_size(given: dict[str, Any]) -> int:
    return int(given.get("tensor_model_parallel_size", 1))


class ParallelSection(Section):
    """Layout of the model over the ranks. The data-parallel size follows from the number of ranks."""

    tensor_model_parallel_size: Int = Field(default=1, gt=0)
    """Ranks that share every layer."""
    pipeline_model_parallel_size: Int = Field(default=1, gt=0)
    """Stages into which the layers are cut."""
    virtual_pipeline_model_parallel_size: Int | None = Field(default=None, gt=1)
    """Chunks of layers per stage (interleaved schedule); by default one."""
    num_layers_in_first_pipeline_stage: Int | None = Field(default=None, gt=0)
    """Layers of the first stage; by default all stages have as many."""
    num_layers_in_last_pipeline_stage: Int | None = Field(default=None, gt=0)
    """Layers of the last stage; by default all stages have as many."""
    pipeline_layers: tuple[Annotated[Int, Field(gt=0)], ...] | None = None
    """Layers of every stage, such as [5, 6, 6, 5]; with chunks, of every chunk in the order of the layers: the first
    chunks of all stages, then the second."""
    context_parallel_size: Int = Field(default=1, gt=0)
    """Ranks that share every sequence, two pieces of it each; for sequences too long for one device."""
    overlap_p2p_comm: Bool | None = None
    """Whether stages of the interleaved schedule compute while they send and receive; by default where the backend
    can."""
    expert_model_parallel_size: Int = Field(default=1, gt=0)
    """Ranks that share the experts of a layer: of the data-parallel ones, and of the tensor-parallel ones where experts
    are whole."""
    expert_tensor_parallel_size: Int = Field(gt=0, default_factory=_tensor_model_parallel_size)
    """Ranks that share every expert; by default tensor_model_parallel_size."""
    sequence_parallel: Bool = False
    """Whether norms and dropout are split along the sequence over the tensor-parallel ranks."""
    use_distributed_optimizer: Bool = False
    """Whether the optimizer's state is split over the ranks with equal weights, data x context parallel (ZeRO-1)."""
    overlap_grad_reduce: Bool = False
    """Whether gradients are reduced while the backward pass still runs."""
    ddp_bucket_size: Int | None = Field(default=None, gt=0)
    """Gradients that are reduced together, in elements; by default 40 million, or 1 million x data-parallel size if
    that is more."""
    overlap_param_gather: Bool = False
    """Whether updated weights are gathered while the next forward pass already runs."""
    distributed_timeout_minutes: Int = Field(default=10, gt=0)
    """Timeout of a collective in minutes."""


class RecomputeSection(Section):
    """Activations that are computed again in the backward pass instead of kept."""

    granularity: Literal["none", "selective", "full"] = "none"
    """none, selective (the attention between its projections) or full (whole layers)."""
    method: Literal["uniform", "block"] = "uniform"
    """For full: uniform keeps the input of every group of num_layers layers, which divides those of a stage; block
    recomputes the first num_layers layers of each stage."""
    num_layers: Int = Field(default=1, gt=0)
    """For full: see method."""
    distribute_saved_activations: Bool = False
    """For full: whether kept activations are split over the tensor-parallel ranks."""
