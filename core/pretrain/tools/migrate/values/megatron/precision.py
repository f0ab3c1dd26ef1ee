"""Keys of the section `precision`.

The loss scale of fp16 is DeepSpeed's where DeepSpeed steps the optimizer; deepspeed_file.py has those keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.values.worked import Worked

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings

_IN_FP32 = ("accumulate_allreduce_grads_in_fp32", "fp32_allreduce")


def dtype(settings: Settings) -> Worked:
    """Return the dtype of weights and activations."""
    for name in ("fp16", "bf16"):
        if settings.value(name):
            return Worked(name, (name,))
    return Worked("fp32", ("fp16", "bf16"))


def loss_scale(settings: Settings) -> Worked | None:
    """Return the fixed scale of fp16."""
    given = settings.value("loss_scale")
    return Worked(given, ("loss_scale",)) if given and _is_fp16(settings) else None


def initial_loss_scale(settings: Settings) -> Worked | None:
    """Return where the dynamic scale starts."""
    return _of_dynamic_scale(settings, "initial_loss_scale")


def loss_scale_window(settings: Settings) -> Worked | None:
    """Return the steps after which the dynamic scale grows."""
    return _of_dynamic_scale(settings, "loss_scale_window")


def hysteresis(settings: Settings) -> Worked | None:
    """Return the overflows after which the dynamic scale is halved."""
    return _of_dynamic_scale(settings, "hysteresis")


def min_loss_scale(settings: Settings) -> Worked | None:
    """Return the least dynamic scale, which the versions of 2019 call --min-scale."""
    return _of_dynamic_scale(settings, "min_loss_scale" if settings.value("min_scale") is None else "min_scale")


def grad_reduce_in_fp32(settings: Settings) -> Worked | None:
    """Return whether gradients are summed in fp32, as those of bf16 are there unless a flag says otherwise."""
    kind = dtype(settings).value
    name = next((name for name in _IN_FP32 if settings.value(name)), _IN_FP32[0])
    if kind == "fp16":
        return Worked(bool(settings.value(name)), (name,))
    if kind == "bf16" and settings.value("grad_reduce_in_bf16"):
        return Worked(False, ("grad_reduce_in_bf16",))
    return Worked(None, (), idle=((name, "gradients are summed in fp32 anyway"),))


def _is_fp16(settings: Settings) -> bool:
    return bool(dtype(settings).value == "fp16")


def _of_dynamic_scale(settings: Settings, name: str) -> Worked | None:
    given = settings.value(name)
    if given is None or not _is_fp16(settings):
        return None
    if settings.value("loss_scale"):
        return Worked(None, (), idle=((name, "the loss scale is fixed"),))
    return Worked(given, (name,))
