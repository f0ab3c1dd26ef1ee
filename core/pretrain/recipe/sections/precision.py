"""Section `precision`: the dtype of the computation and the loss scale of fp16."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pretrain.recipe.section import Bool, Float, Int, Section


def _needs_fp32_sum(given: dict[str, Any]) -> bool:
    """True for bf16, as in Megatron-LM: its 8 bits of mantissa lose small addends."""
    return given.get("dtype") == "bf16"


class PrecisionSection(Section):
    """The dtype of the computation and the loss scale of fp16. Main weights and Adam's moments are always fp32."""

    dtype: Literal["fp32", "bf16", "fp16"] = Field(default="fp32", description="Dtype of weights and activations.")
    loss_scale: Float | None = Field(
        default=None, gt=0, description="Fixed loss scale of fp16; by default it is found dynamically."
    )
    initial_loss_scale: Float = Field(default=2.0**32, gt=0, description="Where the dynamic loss scale starts.")
    loss_scale_window: Int = Field(
        default=1000, gt=0, description="Iterations without an overflow after which the dynamic loss scale is doubled."
    )
    hysteresis: Int = Field(default=2, gt=0, description="Overflows after which the dynamic loss scale is halved.")
    min_loss_scale: Float = Field(default=1.0, gt=0, description="The dynamic loss scale does not fall below it.")
    grad_reduce_in_fp32: Bool = Field(
        default_factory=_needs_fp32_sum,
        description="Whether gradients are accumulated and reduced in fp32; by default only for bf16.",
    )
    fp16_lm_cross_entropy: Bool = Field(
        default=False, description="Whether the cross entropy of fp16 logits is computed in fp16 instead of fp32."
    )
