"""Keys of the section `precision` that several settings make together."""

# `calculate_derived` (megatron/neox_arguments/arguments.py); DeepSpeed's defaults of fp16 (runtime/constants.py).

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pretrain.tools.migrate.neox.objects import refused, stated, whole
from pretrain.tools.migrate.setting import Derived, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Function, Settings

_NAMES = {"fp16": "fp16", "fp32": "fp32", "bfloat16": "bf16", "bf16": "bf16"}
_SUMS = ("data_types.grad_accum_dtype", "communication_data_type")
_FP32 = {"fp32", "float32", "float", "torch.float32"}
_POWER = 16
_MOST = 1000
"""2 ** 1000 is near the largest number."""


def dtype(settings: Settings) -> Derived:
    """Return the dtype of weights and activations."""
    if takes_type_of_fp16(settings):
        return _by_type(settings)
    said = _said(settings)
    if len(set(said.values())) > 1:
        given = ", ".join(f"{name} says {kind}" for name, kind in said.items())
        raise refused(settings, next(iter(said)), given, "Remove one of them")
    lost = _unread_type(settings) if settings.value("fp16.type") == "bfloat16" else ()
    if not said:
        return Derived("fp32", ("precision", "fp16", "bf16"), "nothing says another dtype", lost=lost)
    return Derived(next(iter(said.values())), tuple(said), lost=lost)


def _by_type(settings: Settings) -> Derived:
    """Return the dtype of a version that asks fp16.type before precision, and takes no fp16 from precision."""
    name = "precision" if settings.value("fp16.type") is None else "fp16.type"
    if settings.value(name) == "bfloat16":
        kind, names = "bf16", (name, *stated(settings, "fp16.enabled"))
    else:
        kind, names = ("fp16" if settings.value("fp16.enabled") else "fp32"), ("fp16.enabled", *stated(settings, name))
    said = settings.value("precision")
    if said is None or _NAMES.get(str(said).lower()) == kind:
        return Derived(kind, tuple(dict.fromkeys((*names, *stated(settings, "precision")))))
    why = f"{settings.program.title} trains in {kind}, because the object fp16 decides there"
    return Derived(kind, tuple(each for each in names if each != "precision"), idle=(("precision", why),))


def _unread_type(settings: Settings) -> tuple[tuple[str, str], ...]:
    why = f"{settings.program.title} does not read it; GPT-NeoX until May 2023 trains in bf16: --from gpt-neox-2.0"
    return (("fp16.type", why),)


def _said(settings: Settings) -> dict[str, str]:
    found: dict[str, str] = {}
    given = settings.value("precision")
    if given is not None:
        if str(given).lower() not in _NAMES:
            raise refused(settings, "precision", f"{given!r} is not one of fp16, fp32 or bfloat16", "Give one of them")
        found["precision"] = _NAMES[str(given).lower()]
    enabled = {"fp16.enabled": "fp16", "bf16.enabled": "bf16"}
    return found | {path: kind for path, kind in enabled.items() if settings.value(path)}


def loss_scale(settings: Settings) -> Derived | None:
    """Return the fixed scale of fp16; 0 is a dynamic one."""
    given = settings.value("fp16.loss_scale")
    if given is None:
        return None
    if dtype(settings).value != "fp16":
        return unused("fp16.loss_scale", "the dtype is not fp16")
    if not given:
        return unused("fp16.loss_scale", "0 is a dynamic one, as without it")
    return Derived(given, ("fp16.loss_scale",))


def initial_loss_scale(settings: Settings) -> Derived | None:
    """Return where the dynamic scale starts, by default at DeepSpeed's 2 ** 16."""
    path = "fp16.initial_scale_power"
    found = _of_dynamic_scale(settings, path, _POWER)
    if found is None or found.value is None:
        return found
    power = whole(settings, path, _POWER)
    if abs(power) > _MOST:
        raise refused(settings, path, f"2 to the power of {power} is out of range", "Give such as 16")
    note = f"2 to the power of {power}" + ("" if found.names else ", DeepSpeed's default")
    return Derived(2.0**power, found.names, note)


def _of_dynamic_scale(settings: Settings, path: str, otherwise: int | None = None) -> Derived | None:
    given = settings.value(path)
    is_fp16 = dtype(settings).value == "fp16"
    if is_fp16 and not settings.value("fp16.loss_scale"):
        value = otherwise if given is None else given
        return None if value is None else Derived(value, () if given is None else (path,))
    if given is None:
        return None
    why = "the loss scale is fixed" if is_fp16 else "the dtype is not fp16"
    return unused(path, why)


def grad_reduce_in_fp32(settings: Settings) -> Derived | None:
    """Return whether gradients are summed in fp32, which DeepSpeed does where it is told to."""
    names = stated(settings, *_SUMS, *(("fp32_allreduce",) if settings.value("fp32_allreduce") else ()))
    if (kind := dtype(settings).value) == "fp32":
        return unused(names, "gradients are fp32 anyway")
    if settings.value("fp32_allreduce") or any(str(settings.value(path)).lower() in _FP32 for path in _SUMS):
        return Derived(True, names, lost=_lost(settings))
    note = f"DeepSpeed sums them in {kind} unless data_types.grad_accum_dtype says fp32"
    return Derived(False, names, note if kind == "bf16" else "")


def _lost(settings: Settings) -> tuple[tuple[str, str], ...]:
    if not settings.value("fp32_allreduce") or whole(settings, "model_parallel_size", 1) < 2:
        return ()
    return (("fp32_allreduce", "activations are summed over the tensor-parallel ranks in their own dtype"),)


_FIRST = {"gpt-neox-2.0"}
_BEFORE_AUTUMN_2023 = {*_FIRST, "gpt-neox-2023.05"}
_BEFORE_GATED_ACTIVATIONS = {
    *_BEFORE_AUTUMN_2023,
    "gpt-neox-2023.10",
    "gpt-neox-2024.02",
    "gpt-neox-2024.04",
    "gpt-neox-2024.08",
}


def takes_type_of_fp16(settings: Settings) -> bool:
    """Say whether fp16.type chooses the dtype: until May 2023 (`calculate_derived`, the commit 056e9caf)."""
    return settings.program.name in _FIRST


def decays_too_long(settings: Settings) -> bool:
    """Say whether the warm-up is not part of the decay: until September 2023 (`AnnealingLR`, the commit 390d37cc)."""
    return settings.program.name in _BEFORE_AUTUMN_2023


def has_llama_mlp(settings: Settings) -> bool:
    """Say whether the MLP is LLaMA's, which mlp_type chose until September 2024 (`LLaMAParallelMLP`)."""
    return bool(settings.value("mlp_type") == "llama")


def has_old_mlp(settings: Settings) -> bool:
    """Say whether only LLaMA's MLP is gated and has a width: until September 2024 (`ParallelMLP`, commit 0d4bdb96)."""
    return settings.program.name in _BEFORE_GATED_ACTIVATIONS or settings.value("mlp_type") is not None


FUNCTIONS: Mapping[str, Function] = {
    "precision.dtype": dtype,
    "precision.loss_scale": loss_scale,
    "precision.initial_loss_scale": initial_loss_scale,
    "precision.loss_scale_window": partial(_of_dynamic_scale, path="fp16.loss_scale_window"),
    "precision.hysteresis": partial(_of_dynamic_scale, path="fp16.hysteresis"),
    "precision.min_loss_scale": partial(_of_dynamic_scale, path="fp16.min_loss_scale"),
    "precision.grad_reduce_in_fp32": grad_reduce_in_fp32,
}
