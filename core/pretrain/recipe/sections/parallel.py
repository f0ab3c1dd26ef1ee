"""Section `parallel`: how the model is laid over the ranks. The data-parallel size follows from the number of ranks."""

from __future__ import annotations

from pydantic import Field

from pretrain.recipe.section import Bool, Int, Section


class ParallelSection(Section):
    """How the model is laid over the ranks. The data-parallel size follows from the number of ranks."""

    tensor_model_parallel_size: Int = Field(default=1, gt=0, description="Ranks that share every layer.")
    pipeline_model_parallel_size: Int = Field(default=1, gt=0, description="Stages into which the layers are cut.")
    virtual_pipeline_model_parallel_size: Int | None = Field(
        default=None, gt=1, description="Chunks of layers per stage (interleaved schedule); by default one."
    )
    sequence_parallel: Bool = Field(
        default=False,
        description="Whether norms and dropout are split along the sequence over the tensor-parallel ranks.",
    )
    use_distributed_optimizer: Bool = Field(
        default=False, description="Whether the optimizer's state is split over the data-parallel ranks (ZeRO-1)."
    )
    overlap_grad_reduce: Bool = Field(
        default=False, description="Whether gradients are reduced while the backward pass still runs."
    )
    overlap_param_gather: Bool = Field(
        default=False, description="Whether updated weights are gathered while the next forward pass already runs."
    )
    distributed_timeout_minutes: Int = Field(
        default=10, gt=0, description="Minutes after which a collective is given up."
    )
