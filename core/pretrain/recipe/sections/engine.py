"""Section `engine`: what steps the optimizer, and DeepSpeed's ZeRO and offload.

Keys, defaults and meaning of `zero` are those of DeepSpeed 0.19 (deepspeed/runtime/zero/config.py, offload_config.py);
`cpu_adam` is ours. `ratio` is left out: another AdamW (DeepSpeedZeroOptimizer_Stage3.__init__) steps what it leaves on
the device; no schedule reaches its learning rate and no checkpoint holds it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from pretrain.recipe.section import Bool, Int, LocalPath, Section, local_path, shown


class OffloadOptimizerSection(Section):
    """Place of the optimizer's state and step: beside the weights, or in host memory."""

    device: Literal["none", "cpu", "nvme"] = "none"
    """none: beside the weights; cpu: in host memory; nvme: in files (stage 3)."""
    nvme_path: LocalPath | None = None
    """For nvme: folder of the files."""
    pin_memory: Bool = True
    """Whether the host memory is page-locked, which makes copies faster."""
    buffer_count: Int = Field(default=4, ge=0)
    """For nvme: number of buffers in host memory."""
    fast_init: Bool = False
    """For nvme, of weights too: whether the optimizer is built from the files at once."""
    pipeline_read: Bool = False
    """For nvme: whether the next part is read while this one is computed."""
    pipeline_write: Bool = False
    """For nvme: whether the last part is written while this one is computed."""
    cpu_adam: Literal["deepspeed", "torch", "auto"] = "deepspeed"
    """Adam of the host: deepspeed (compiled at its first use; an error without a compiler), torch (its fused AdamW), or
    auto: deepspeed, or torch without a compiler."""


class OffloadParamSection(Section):
    """Place of the weights until they are used, at stage 3."""

    device: Literal["none", "cpu", "nvme"] = "none"
    """none: on the device; cpu: in host memory; nvme: in files."""
    nvme_path: LocalPath | None = None
    """For nvme: folder of the files."""
    pin_memory: Bool = True
    """Whether the host memory is page-locked, which makes copies faster."""
    buffer_count: Int = Field(default=5, ge=0)
    """For nvme: number of buffers in host memory."""
    buffer_size: Int = Field(default=100_000_000, ge=0)
    """For nvme: size of one buffer, in elements."""
    max_in_cpu: Int = Field(default=1_000_000_000, ge=0)
    """For nvme: elements of weights that stay in host memory."""


def _even(given: int) -> int:
    """Check what DeepSpeedZeroOptimizer.__init__ asserts: shares are aligned to 4 bytes, two elements of fp16."""
    if given % 2:
        msg = f"{given} must be even."
        raise ValueError(msg)
    return given


class ZeroSection(Section):
    """State that DeepSpeed splits over the data-parallel ranks, and its communication. Sizes count elements."""

    stage: Int = Field(default=0, ge=0, le=3)
    """What is split over the data-parallel ranks: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 weights
    too."""
    contiguous_gradients: Bool = True
    """Whether gradients are copied into one buffer as they are produced."""
    reduce_scatter: Bool = True
    """Whether each rank receives the sum of its part only, instead of the whole sum."""
    reduce_bucket_size: Int = Field(default=500_000_000, gt=0)
    """Gradients that are reduced at a time, in elements."""
    allgather_bucket_size: Annotated[Int, AfterValidator(_even)] = Field(default=500_000_000, gt=0)
    """Updated weights that are gathered at a time, in elements."""
    overlap_comm: Bool | None = None
    """Whether gradients are reduced while the backward pass runs; by default at stage 3 only."""
    round_robin_gradients: Bool = False
    """Whether ranks own gradients in turns, so that all copy to the host together."""
    sub_group_size: Int = Field(default=1_000_000_000, ge=0)
    """Weights that the optimizer updates at a time, in elements."""
    stage3_prefetch_bucket_size: Int = Field(default=50_000_000, ge=0)
    """Weights that are gathered ahead of their use, in elements."""
    stage3_param_persistence_threshold: Int = Field(default=100_000, ge=0)
    """Weights up to this size stay whole on every rank, in elements."""
    stage3_model_persistence_threshold: Int | None = Field(default=None, ge=0)
    """Most elements of weights that stay whole; by default there is no limit."""
    stage3_max_live_parameters: Int = Field(default=1_000_000_000, ge=0)
    """Gathered weights that a rank holds at a time, in elements."""
    stage3_max_reuse_distance: Int = Field(default=1_000_000_000, ge=0)
    """A weight stays gathered if it is used again within this many elements of weights."""
    offload_optimizer: OffloadOptimizerSection = OffloadOptimizerSection()
    offload_param: OffloadParamSection = OffloadParamSection()


def _file_or_object(given: object) -> object:
    if given is None or (isinstance(given, str | dict) and given):
        return local_path(given)
    msg = f"{shown(given)} is neither the path of a DeepSpeed JSON file nor an object with its keys."
    raise ValueError(msg)


class EngineSection(Section):
    """Engine that steps the optimizer."""

    name: Literal["megatron", "deepspeed"] = "megatron"
    """megatron: megatron-core's data parallelism and optimizer; deepspeed: DeepSpeed's, with ZeRO and offload."""
    zero: ZeroSection = ZeroSection()
    deepspeed_config: Annotated[str | dict[str, Any] | None, BeforeValidator(_file_or_object)] = None
    """A DeepSpeed JSON file, relative to the working directory, or its content as a mapping; its keys become keys of
    the recipe."""
