"""GPT-NeoX's settings of batches, the length of the training, the optimizer, its schedule and its precision."""

# `calculate_derived` (megatron/neox_arguments/arguments.py); DeepSpeed's defaults of fp16 (runtime/constants.py).

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.neox.objects import number, refused, stated, whole
from pretrain.tools.migrate.setting import Derived, in_place, taken, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Function, Settings

_UNTIL_MAY_2023 = {"gpt-neox-2.0"}
_UNTIL_SEPTEMBER_2023 = {*_UNTIL_MAY_2023, "gpt-neox-2023.05"}
_BATCH, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_LAYOUT = ("model_parallel_size", "pipe_parallel_size")


def micro_batch_size(settings: Settings) -> Derived | None:
    """Return the samples of a rank: stated, or what the global batch leaves for it."""
    if settings.value(_MICRO) is not None:
        return Derived(whole(settings, _MICRO, 1), (_MICRO,))
    if settings.value(_BATCH) is None:
        return None
    batch, steps, replicas = whole(settings, _BATCH, 1), whole(settings, _STEPS, 1), _replicas(settings)
    if batch % (steps * replicas):
        why = f"{batch} samples are not a multiple of {_of(steps, replicas)}"
        raise refused(settings, _BATCH, why, "Change one of the numbers, or give --devices N")
    return Derived(batch // (steps * replicas), (_BATCH, _STEPS), f"{batch} / {_of(steps, replicas)}")


def global_batch_size(settings: Settings) -> Derived | None:
    """Return the samples of a step: stated, or the micro batches of all replicas."""
    if settings.value(_BATCH) is not None:
        batch = whole(settings, _BATCH, 1)
        if settings.value(_MICRO) is not None and devices(settings) is not None:
            micro, steps, replicas = whole(settings, _MICRO, 1), whole(settings, _STEPS, 1), _replicas(settings)
            if batch != micro * steps * replicas:  # GPT-NeoX refuses it too; its steps are 1 by default
                why = f"{batch} is not {micro} x {_of(steps, replicas)} = {micro * steps * replicas}"
                raise refused(settings, _BATCH, why, "Remove one of the three sizes, or give --devices N")
        return Derived(batch, (_BATCH, *stated(settings, _STEPS)))
    if settings.value(_MICRO) is None:
        return None
    micro, steps, replicas = whole(settings, _MICRO, 1), whole(settings, _STEPS, 1), _replicas(settings)
    return Derived(micro * steps * replicas, (_MICRO, _STEPS), f"{micro} x {_of(steps, replicas)}")


def _of(steps: int, replicas: int) -> str:
    return f"{steps} steps of accumulation x {replicas} replica{'s' * (replicas > 1)}"


def devices(settings: Settings) -> int | None:
    """Return the number of all devices; None if nothing tells it."""
    if settings.devices is not None:
        return settings.devices
    if settings.value("global_num_gpus") is not None:
        return whole(settings, "global_num_gpus", 1)
    gpus, nodes = settings.value("num_gpus"), settings.value("num_nodes", -1)
    if isinstance(gpus, int) and isinstance(nodes, int) and gpus > 0 and nodes > 0:
        return gpus * nodes
    return None


def _replicas(settings: Settings) -> int:
    number = devices(settings)
    if number is None:
        given = stated(settings, _MICRO, _BATCH)
        place = settings.stated[given[0]].place if given and given[0] in settings.stated else None
        msg = (
            f"{f'{place}: ' if place else ''}{_MICRO} and {_BATCH} depend on each other and on the number of "
            "devices, which no source gives.\nGive --devices N, the number of all devices of the training."
        )
        raise MigrateError(msg)
    shared = 1
    for name in _LAYOUT:
        shared *= max(1, whole(settings, name, 1))
    if number < 1 or number % shared:
        sizes = " x ".join(f"{name} {settings.value(name, 1)}" for name in _LAYOUT)
        msg = f"{number} devices are not a multiple of {shared} ({sizes}).\nGive --devices N, or another layout."
        raise MigrateError(msg)
    return number // shared


_TYPE, _PARAMS = "optimizer.type", "optimizer.params"
_ADAMS = {"adam", "cpu_adam", "cpu_torch_adam"}
_STYLES = {"constant", "linear", "cosine"}
_DECAY = "lr_decay_style"
_LONGEST = 1000
"""Trainings that a decay may last: GPT-NeoX allows any, the arithmetic does not."""


def optimizer_name(settings: Settings) -> Derived | None:
    """Return which Adam it is; DeepSpeed's and apex's Adam have decoupled weight decay."""
    given, mode = settings.value(_TYPE), f"{_PARAMS}.adam_w_mode"
    if given is not None and str(given).lower() not in _ADAMS:
        return in_place("adamw", _TYPE, f"{given} is not supported; adamw is used instead")
    names = tuple(name for name in (_TYPE, mode) if settings.value(name) is not None)
    return Derived("adam" if settings.value(mode) is False else "adamw", names) if names else None


def lr(settings: Settings) -> Derived | None:
    """Return the highest learning rate: 0.001 for an optimizer that states none."""
    given = settings.value(f"{_PARAMS}.lr")
    if given is None:
        if not any(name.startswith("optimizer.") for name in settings.stated):
            return None
        return Derived(0.001, (), "GPT-NeoX's value without optimizer.params.lr")
    return Derived(given, (f"{_PARAMS}.lr",))


def _beta(settings: Settings, number: int) -> Derived | None:
    path = f"{_PARAMS}.betas"
    given = settings.value(path)
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2:
        raise refused(settings, path, f"{given!r} is not a list of two numbers", "Give two numbers such as [0.9, 0.95]")
    return Derived(given[number], (path,))


def weight_decay(settings: Settings) -> Derived:
    """Return the weight decay, which stands beside the optimizer."""
    path = f"{_PARAMS}.weight_decay"
    if settings.value(path) is not None:
        why = f"GPT-NeoX also gives Adam weight_decay {settings.value('weight_decay')}, and stops with an error"
        raise refused(settings, path, why, "Remove it, and set weight_decay outside of optimizer")
    return Derived(settings.value("weight_decay"), ("weight_decay",))


def _clip_grad(settings: Settings) -> Derived | None:
    flag, given = settings.program.flags.get("gradient_clipping"), settings.value("gradient_clipping")
    if given is None:
        return None
    untold = bool(given) and flag is not None and flag.default == given
    note = f"GPT-NeoX does not pass its default {given} to DeepSpeed, which clips nothing if its own default is 0"
    return Derived(given, ("gradient_clipping",), note if untold else "")


def lr_decay_style(settings: Settings) -> Derived:
    """Return how the learning rate falls, and what is different about it here."""
    given = str(settings.value(_DECAY, "linear")).lower()
    if given not in _STYLES:
        change = f"{given}, a halving until lr_decay_iters, is not supported; linear is used instead"
        return Derived(
            "linear", (), lost=((_DECAY, change if given == "exponential" else f"{given} is not supported"),)
        )
    change = _difference(settings, given)
    return Derived(given, (_DECAY,), lost=((_DECAY, change),) if change else ())


def _difference(settings: Settings, style: str) -> str:
    least = settings.value("min_lr", 0.0)
    if style == "constant":
        return ""
    if settings.program.name in _UNTIL_SEPTEMBER_2023:  # the warm-up is not part of the decay: AnnealingLR, 390d37cc
        title = settings.program.title
        return f"{title} lets it fall towards 0, a warm-up longer, and holds it at min_lr; here it falls to min_lr"
    if style == "linear" and least:
        return "GPT-NeoX lets it fall towards 0 and holds it at min_lr; here it falls to min_lr at the end of the decay"
    length, end = whole(settings, "train_iters", 0), lr_decay_iters(settings)
    if style == "cosine" and end is not None and end.value < length:
        return f"GPT-NeoX lets it rise again after iteration {end.value}; here it stays at min_lr"
    return ""


def lr_decay_iters(settings: Settings) -> Derived | None:
    """Return the end of the decay: stated, or a part of the training."""
    fraction, length = settings.value("lr_decay_fraction"), whole(settings, "train_iters", 0)
    if settings.value("lr_decay_iters") is not None:
        idle = (("lr_decay_fraction", "lr_decay_iters wins"),) if fraction is not None else ()
        return Derived(whole(settings, "lr_decay_iters", 1), ("lr_decay_iters",), idle=idle)
    if fraction is None or not length:
        return None
    part = number(settings, "lr_decay_fraction", 1)
    if not 0 <= part <= _LONGEST:
        why = f"{fraction} of the training is not a possible length of the decay"
        raise refused(settings, "lr_decay_fraction", why, "Give a part such as 0.9")
    return Derived(max(1, math.floor(length * part)), ("lr_decay_fraction",), f"{fraction} x {length}")


_NAMES = {"fp16": "fp16", "fp32": "fp32", "bfloat16": "bf16", "bf16": "bf16"}
_SUMS = ("data_types.grad_accum_dtype", "communication_data_type")
_FP32 = {"fp32", "float32", "float", "torch.float32"}
_POWER = 16
_MOST = 1000
"""2 ** 1000 is near the largest number."""


def _dtype(settings: Settings) -> Derived:
    if settings.program.name in _UNTIL_MAY_2023:
        return _by_type(settings)
    said = _said(settings)
    if len(set(said.values())) > 1:
        given = ", ".join(f"{name} says {kind}" for name, kind in said.items())
        raise refused(settings, next(iter(said)), given, "Remove one of them")
    why = f"{settings.program.title} does not read it; GPT-NeoX until May 2023 trains in bf16: --from gpt-neox-2.0"
    lost = (("fp16.type", why),) if settings.value("fp16.type") == "bfloat16" else ()
    if not said:
        return Derived("fp32", ("precision", "fp16", "bf16"), "nothing says another dtype", lost=lost)
    return Derived(next(iter(said.values())), tuple(said), lost=lost)


def _by_type(settings: Settings) -> Derived:
    """Return the dtype of a version that asks fp16.type first (`calculate_derived`, commit 056e9caf ended it)."""
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
    if _dtype(settings).value != "fp16":
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
        raise refused(settings, path, f"2 to the power of {power} is out of range", "Give a power such as 16")
    note = f"2 to the power of {power}" + ("" if found.names else ", DeepSpeed's default")
    return Derived(2.0**power, found.names, note)


def _of_dynamic_scale(settings: Settings, path: str, otherwise: int | None = None) -> Derived | None:
    given = settings.value(path)
    is_fp16 = _dtype(settings).value == "fp16"
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
    if (kind := _dtype(settings).value) == "fp32":
        return unused(names, "gradients are always fp32")
    if settings.value("fp32_allreduce") or any(str(settings.value(path)).lower() in _FP32 for path in _SUMS):
        change = "activations are summed over the tensor-parallel ranks in their own dtype"
        is_lost = settings.value("fp32_allreduce") and whole(settings, "model_parallel_size", 1) > 1
        return Derived(True, names, lost=(("fp32_allreduce", change),) if is_lost else ())
    note = f"DeepSpeed sums them in {kind} unless data_types.grad_accum_dtype says fp32"
    return Derived(False, names, note if kind == "bf16" else "")


FUNCTIONS: Mapping[str, Function] = {
    "train.micro_batch_size": micro_batch_size,
    "train.global_batch_size": global_batch_size,
    "optimizer.name": optimizer_name,
    "optimizer.lr": lr,
    "optimizer.adam_beta1": partial(_beta, number=0),
    "optimizer.adam_beta2": partial(_beta, number=1),
    "optimizer.adam_eps": partial(taken, name=f"{_PARAMS}.eps"),
    "optimizer.weight_decay": weight_decay,
    "optimizer.clip_grad": _clip_grad,
    "schedule.lr_decay_style": lr_decay_style,
    "schedule.lr_decay_iters": lr_decay_iters,
    "precision.dtype": _dtype,
    "precision.loss_scale": loss_scale,
    "precision.initial_loss_scale": initial_loss_scale,
    "precision.loss_scale_window": partial(_of_dynamic_scale, path="fp16.loss_scale_window"),
    "precision.hysteresis": partial(_of_dynamic_scale, path="fp16.hysteresis"),
    "precision.min_loss_scale": partial(_of_dynamic_scale, path="fp16.min_loss_scale"),
    "precision.grad_reduce_in_fp32": grad_reduce_in_fp32,
}
