"""Section `optimizer`: Adam and gradient clipping."""

from __future__ import annotations

from typing import Literal, assert_never

from pydantic import Field

from pretrain.recipe.section import Float, Section


class OptimizerSection(Section):
    """Adam and gradient clipping."""

    name: Literal["adam", "adamw"] = Field(
        default="adamw",
        description="adamw (decoupled weight decay, what Megatron-LM calls adam) or adam (weight decay added to the "
        "gradient).",
    )
    lr: Float = Field(gt=0, description="Highest learning rate.")
    adam_beta1: Float = Field(default=0.9, ge=0, lt=1, description="Decay of the mean of the gradient.")
    adam_beta2: Float = Field(default=0.999, ge=0, lt=1, description="Decay of the mean of its square.")
    adam_eps: Float = Field(default=1e-8, gt=0, description="Added to the denominator of the update.")
    weight_decay: Float = Field(default=0.01, ge=0, description="Weight decay of matrices; biases and norms have none.")
    clip_grad: Float = Field(
        default=1.0, ge=0, description="Gradients are scaled down to this norm over all weights; 0: they are not."
    )

    @property
    def decoupled_weight_decay(self) -> bool:
        """AdamW: weight decay shrinks the weights beside Adam's step and is no part of the gradient."""
        match self.name:
            case "adamw":
                return True
            case "adam":
                return False
            case _:
                assert_never(self.name)
