"""Sections `engine.zero.offload_optimizer` and `engine.zero.offload_param`: what ZeRO keeps off the device.

Keys, defaults and meaning are those of DeepSpeed 0.19 (deepspeed/runtime/zero/offload_config.py); `cpu_adam` is ours.
`ratio` is left out: another AdamW (DeepSpeedZeroOptimizer_Stage3.__init__) steps what it leaves on the device; no
schedule reaches its learning rate and no checkpoint holds it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pretrain.recipe.section import Bool, Int, LocalPath, Section


class OffloadOptimizerSection(Section):
    """Place of the optimizer's state and step: beside the weights, or in host memory."""

    device: Literal["none", "cpu", "nvme"] = Field(
        default="none", description="none: beside the weights; cpu: in host memory; nvme: in files (stage 3)."
    )
    nvme_path: LocalPath | None = Field(default=None, description="For nvme: folder of the files.")
    pin_memory: Bool = Field(
        default=True, description="Whether the host memory is page-locked, which makes copies faster."
    )
    buffer_count: Int = Field(default=4, ge=0, description="For nvme: number of buffers in host memory.")
    fast_init: Bool = Field(
        default=False, description="For nvme, of weights too: whether the optimizer is built from the files at once."
    )
    pipeline_read: Bool = Field(
        default=False, description="For nvme: whether the next part is read while this one is computed."
    )
    pipeline_write: Bool = Field(
        default=False, description="For nvme: whether the last part is written while this one is computed."
    )
    cpu_adam: Literal["deepspeed", "torch", "auto"] = Field(
        default="deepspeed",
        description="Adam of the host: deepspeed (compiled at its first use; an error without a compiler), torch "
        "(its fused AdamW), or auto: deepspeed, or torch without a compiler.",
    )


class OffloadParamSection(Section):
    """Place of the weights until they are used, at stage 3."""

    device: Literal["none", "cpu", "nvme"] = Field(
        default="none", description="none: on the device; cpu: in host memory; nvme: in files."
    )
    nvme_path: LocalPath | None = Field(default=None, description="For nvme: folder of the files.")
    pin_memory: Bool = Field(
        default=True, description="Whether the host memory is page-locked, which makes copies faster."
    )
    buffer_count: Int = Field(default=5, ge=0, description="For nvme: number of buffers in host memory.")
    buffer_size: Int = Field(default=100_000_000, ge=0, description="For nvme: size of one buffer, in elements.")
    max_in_cpu: Int = Field(
        default=1_000_000_000, ge=0, description="For nvme: elements of weights that stay in host memory."
    )
