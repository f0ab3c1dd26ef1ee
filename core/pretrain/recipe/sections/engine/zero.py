"""Section `engine.zero`: what DeepSpeed splits over the data-parallel ranks, and how it communicates.

Keys, defaults and meaning are those of DeepSpeed 0.19 (deepspeed/runtime/zero/config.py). Sizes count elements.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from pretrain.recipe.section import Bool, Int, Section
from pretrain.recipe.sections.engine.offload import OffloadOptimizerSection, OffloadParamSection


def _even(given: int) -> int:
    """Check what DeepSpeedZeroOptimizer.__init__ asserts: shares are aligned to 4 bytes, two elements of fp16."""
    if given % 2:
        msg = f"{given} must be even."
        raise ValueError(msg)
    return given


class ZeroSection(Section):
    """State that DeepSpeed splits over the data-parallel ranks, and its communication. Sizes count elements."""

    stage: Int = Field(
        default=0,
        ge=0,
        le=3,
        description="What is split over the data-parallel ranks: 0 nothing, 1 the optimizer's state, 2 gradients too, "
        "3 weights too.",
    )
    contiguous_gradients: Bool = Field(
        default=True, description="Whether gradients are copied into one buffer as they are produced."
    )
    reduce_scatter: Bool = Field(
        default=True, description="Whether each rank receives the sum of its part only, instead of the whole sum."
    )
    reduce_bucket_size: Int = Field(
        default=500_000_000, gt=0, description="Gradients that are reduced at a time, in elements."
    )
    allgather_bucket_size: Annotated[Int, AfterValidator(_even)] = Field(
        default=500_000_000, gt=0, description="Updated weights that are gathered at a time, in elements."
    )
    overlap_comm: Bool | None = Field(
        default=None,
        description="Whether gradients are reduced while the backward pass runs; by default at stage 3 only.",
    )
    round_robin_gradients: Bool = Field(
        default=False, description="Whether ranks own gradients in turns, so that all copy to the host together."
    )
    sub_group_size: Int = Field(
        default=1_000_000_000, ge=0, description="Weights that the optimizer updates at a time, in elements."
    )
    stage3_prefetch_bucket_size: Int = Field(
        default=50_000_000, ge=0, description="Weights that are gathered ahead of their use, in elements."
    )
    stage3_param_persistence_threshold: Int = Field(
        default=100_000, ge=0, description="Weights up to this size stay whole on every rank, in elements."
    )
    stage3_model_persistence_threshold: Int | None = Field(
        default=None, ge=0, description="At most so many elements of weights stay whole; by default there is no limit."
    )
    stage3_max_live_parameters: Int = Field(
        default=1_000_000_000, ge=0, description="Gathered weights that a rank holds at a time, in elements."
    )
    stage3_max_reuse_distance: Int = Field(
        default=1_000_000_000,
        ge=0,
        description="A weight that is used again within so many elements of weights stays gathered.",
    )
    offload_optimizer: OffloadOptimizerSection = OffloadOptimizerSection()
    offload_param: OffloadParamSection = OffloadParamSection()
