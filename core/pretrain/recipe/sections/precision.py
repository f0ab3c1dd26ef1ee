"""Sections `precision` and `kernels`: dtype and loss scale, and which implementation each operation gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model

from pretrain.recipe.section import Bool, Float, Int, Section, Str


def _needs_fp32_sum(given: dict[str, Any]) -> bool:
    """True for bf16, as in Megatron-LM: its 8 bits of mantissa lose small addends."""
    return given.get("dtype") == "bf16"


class PrecisionSection(Section):
    """The dtype of the computation and the loss scale of fp16. Main weights and Adam's moments are always fp32."""

    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Dtype of weights and activations."""
    loss_scale: Float | None = Field(default=None, gt=0)
    """Fixed loss scale of fp16; by default it is found dynamically."""
    initial_loss_scale: Float = Field(default=2.0**32, gt=0)
    """Where the dynamic loss scale starts."""
    loss_scale_window: Int = Field(default=1000, gt=0)
    """Iterations without an overflow after which the dynamic loss scale is doubled."""
    hysteresis: Int = Field(default=2, gt=0)
    """Overflows after which the dynamic loss scale is halved."""
    min_loss_scale: Float = Field(default=1.0, gt=0)
    """The dynamic loss scale does not fall below it."""
    grad_reduce_in_fp32: Bool = Field(default_factory=_needs_fp32_sum)
    """Whether gradients are accumulated and reduced in fp32; by default only for bf16."""
    fp8: Literal["tensorwise", "rowwise", "block", "mxfp8"] | None = None
    """Rounds both operands of linears' matmuls to fp8, with a scale for each matrix, row, 128 (block) or 32 (mxfp8) of
    a row; output layer, router, embedding and attention stay in `dtype`."""
    fp8_wgrad: Bool = True
    """Whether the matmuls of weight gradients are in fp8 too; false leaves them in `dtype`."""
    fp16_lm_cross_entropy: Bool = False
    """Whether the cross entropy of fp16 logits is computed in fp16 instead of fp32."""


COMPILED = ("norm", "norm@head", "rotary", "activation", "bias_dropout_add")
"""Operations that `compile: layer` leaves to the compiler, and not to a kernel of their own."""


def _kernel(operation: str) -> Str:
    chosen: Str = Field(default="auto", min_length=1, description=f"{operation}: auto, or the name of a kernel.")
    return chosen


# Kernels of a role, each a key of its own: "norm@head". An operation's key holds for its roles that are not given.
_OF_ROLES = {
    "activation@expert": "Activation of the routed experts",
    "activation@shared": "Activation of the shared experts",
    "linear@output": "Output layer",
    "linear@router": "Logits of the router",
    "norm@head": "Norm of the queries and keys of each head",
}
if TYPE_CHECKING:
    _RolesSection = Section
else:
    _RolesSection = create_model(
        "_RolesSection",
        __base__=Section,
        **{
            key: (
                Str | None,
                Field(default=None, min_length=1, description=f"{what}; by default as {key.partition('@')[0]}."),
            )
            for key, what in _OF_ROLES.items()
        },
    )


class KernelsSection(_RolesSection):
    """Implementation of each operation. `pretrain explain` shows the names.

    A named kernel that cannot do what this recipe needs is an error.
    """

    attention: Str = Field(default="auto", min_length=1)
    """Attention: auto, flash, triangle, softmax, or the name of a kernel."""
    triangle_block_size: Int = Field(default=512, gt=0)
    """Rows of one block of triangle attention, in tokens."""
    softmax: Str = _kernel("Scale, mask and softmax")
    norm: Str = _kernel("Layer norm and RMS norm")
    rotary: Str = _kernel("Rotary position embedding")
    activation: Str = _kernel("Bias and activation of the MLP")
    bias_dropout_add: Str = _kernel("Bias, dropout and residual")
    cross_entropy: Str = _kernel("Vocabulary-parallel cross entropy")
    linear: Str = _kernel("Tensor-parallel linear")
    grouped_linear: Str = _kernel("Linears of the experts")
    moe_permute: Str = _kernel("Sorting of the tokens by expert")
    router: Str = _kernel("Choice of each token's experts")
    optimizer: Str = _kernel("Adam and the gradient norm")
    collectives: Str = _kernel("Options of the process groups")
    fallback: Literal["allow", "forbid"] = "allow"
    """Whether the pure-torch reference may be taken where no plugin offers a kernel."""
    compile: Literal["none", "layer"] = "none"
    """Whether torch.compile makes norm, rotary, activation and bias_dropout_add of a layer out of the reference's plain
    torch, together where they follow one another (none, layer); not measured."""

    def chosen(self) -> dict[str, str]:
        """Return operation or operation@role -> auto, a kernel, or a kind; reference for what is compiled."""
        named: dict[str, str] = self.model_dump(
            exclude={"fallback", "triangle_block_size", "compile"}, exclude_none=True
        )
        return named | (dict.fromkeys(COMPILED, "reference") if self.compile == "layer" else {})
