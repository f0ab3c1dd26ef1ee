"""Section `kernels`: which implementation each operation gets."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pretrain.recipe.section import Int, Section, Str


def _kernel(operation: str) -> Str:
    chosen: Str = Field(default="auto", min_length=1, description=f"{operation}: auto, or the name of a kernel.")
    return chosen


class KernelsSection(Section):
    """Which implementation each operation gets. `pretrain explain` shows the names.

    A named kernel that cannot do what this recipe needs is an error.
    """

    attention: Str = Field(
        default="auto", min_length=1, description="Attention: auto, flash, triangle, softmax, or the name of a kernel."
    )
    triangle_block_size: Int = Field(
        default=512, gt=0, description="Rows of one block of triangle attention, in tokens."
    )
    softmax: Str = _kernel("Scale, mask and softmax")
    norm: Str = _kernel("Layer norm and RMS norm")
    rotary: Str = _kernel("Rotary position embedding")
    activation: Str = _kernel("Bias and activation of the MLP")
    bias_dropout_add: Str = _kernel("Bias, dropout and residual")
    cross_entropy: Str = _kernel("Vocabulary-parallel cross entropy")
    linear: Str = _kernel("Tensor-parallel linear")
    optimizer: Str = _kernel("Adam and the gradient norm")
    collectives: Str = _kernel("Options of the process groups")
    fallback: Literal["allow", "forbid"] = Field(
        default="allow", description="Whether the pure-torch reference may be taken where no plugin offers a kernel."
    )
