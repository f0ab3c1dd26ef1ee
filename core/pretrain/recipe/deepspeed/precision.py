"""fp16, bf16 and data_types: precision.dtype, its loss scale, and the dtype in which gradients are summed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.recipe.deepspeed.translation import Given
from pretrain.recipe.shown import shown

if TYPE_CHECKING:
    from pretrain.recipe.deepspeed.translation import Translation

_NAMES = {
    name: dtype
    for dtype, names in {
        "fp32": ("torch.float32", "fp32", "float32", "float"),
        "fp16": ("torch.float16", "fp16", "float16", "half"),
        "bf16": ("torch.bfloat16", "bf16", "bfloat16"),
    }.items()
    for name in names
}
"""DtypeEnum of deepspeed/runtime/config.py."""

_SUMS = ("data_types.grad_accum_dtype", "communication_data_type")
_MOST = 1000
"""2 ** 1000 is near the largest number."""


def enabled(translation: Translation, path: str, value: Any) -> None:
    """fp16.enabled, bf16.enabled and the old bfloat16.enabled."""
    dtype = "fp16" if path == "fp16.enabled" else "bf16"
    if not translation.is_switch(path, value):
        return
    if path == "bfloat16.enabled":
        translation.notice(path, "the old name of bf16.enabled; it was read as bf16.enabled.")
    translation.given.append(
        Given(json_path=path, path="precision.dtype", value=dtype, kind="is" if value else "is not")
    )
    if not value:
        translation.settle(path, value)
    elif dtype == "bf16" and not any(translation.file.has(path) for path in _SUMS):
        translation.given.append(
            Given(json_path=path, path="precision.grad_reduce_in_fp32", value=False, kind="by default")
        )


def loss_scale(translation: Translation, path: str, value: Any) -> None:
    """fp16.loss_scale: 0 is a dynamic one."""
    dynamic = not isinstance(value, bool) and value == 0
    translation.give(path, "precision.loss_scale", None if dynamic else value)


def initial_scale_power(translation: Translation, path: str, value: Any) -> None:
    """fp16.initial_scale_power: an exponent of 2."""
    whole = not isinstance(value, bool) and isinstance(value, int | float) and value == value // 1
    if whole and abs(value) <= _MOST:
        translation.give(path, "precision.initial_loss_scale", 2.0**value)
    else:
        translation.refuse(path, f"{shown(value)} is not a whole number in range, the exponent of 2.")


def initial_scale_of_deepspeed(translation: Translation) -> None:
    """Take DeepSpeed's 2 ** 16 where a dynamic scale is given without its start; a recipe's default is 2 ** 32."""
    file = translation.file
    if file.values.get("fp16.enabled") is True and not file.has("fp16.initial_scale_power"):
        translation.given.append(
            Given(
                json_path="fp16.enabled",
                path="precision.initial_loss_scale",
                value=2.0**16,
                kind="by default",
                unless=("precision.loss_scale",),
            )
        )


def sum_of_gradients(translation: Translation, path: str, value: Any) -> None:
    """data_types.grad_accum_dtype and communication_data_type: fp32, or the dtype of the weights."""
    dtype = _dtype(translation, path, value)
    if dtype is None:
        return
    translation.give(path, "precision.grad_reduce_in_fp32", dtype == "fp32")
    if dtype != "fp32":
        translation.give(path, "precision.dtype", dtype)


def dtype_of_weights(translation: Translation, path: str, value: Any) -> None:
    """data_types.param_dtype."""
    dtype = _dtype(translation, path, value)
    if dtype is not None:
        translation.give(path, "precision.dtype", dtype)


def _dtype(translation: Translation, path: str, value: Any) -> str | None:
    dtype = _NAMES.get(value) if isinstance(value, str) else None
    if dtype is None:
        translation.refuse(path, f"{shown(value)} is not one of fp32, bf16 or fp16.")
    return dtype
