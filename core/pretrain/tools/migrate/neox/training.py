"""GPT-NeoX's settings of batches, the length of the training, the optimizer, its schedule and its precision."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.neox.objects import number, refused, stated, whole
from pretrain.tools.migrate.neox.precision import decays_too_long
from pretrain.tools.migrate.setting import Derived, in_place, taken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Function, Settings

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
        why = f"{batch} samples are no multiple of {_of(steps, replicas)}"
        raise refused(settings, _BATCH, why, "Change one of the numbers, or give --devices N")
    return Derived(batch // (steps * replicas), (_BATCH, _STEPS), f"{batch} / {_of(steps, replicas)}")


def global_batch_size(settings: Settings) -> Derived | None:
    """Return the samples of a step: stated, or the micro batches of all replicas."""
    if settings.value(_BATCH) is not None:
        batch = whole(settings, _BATCH, 1)
        _check(settings, batch)
        return Derived(batch, (_BATCH, *stated(settings, _STEPS)))
    if settings.value(_MICRO) is None:
        return None
    micro, steps, replicas = whole(settings, _MICRO, 1), whole(settings, _STEPS, 1), _replicas(settings)
    return Derived(micro * steps * replicas, (_MICRO, _STEPS), f"{micro} x {_of(steps, replicas)}")


def _check(settings: Settings, batch: int) -> None:
    """Refuse three sizes that contradict each other, as GPT-NeoX does, whose steps are 1 by default."""
    if settings.value(_MICRO) is None or devices(settings) is None:
        return
    micro, steps, replicas = whole(settings, _MICRO, 1), whole(settings, _STEPS, 1), _replicas(settings)
    if batch != micro * steps * replicas:
        why = f"{batch} is not {micro} x {_of(steps, replicas)} = {micro * steps * replicas}"
        raise refused(settings, _BATCH, why, "Remove one of the three sizes, or give --devices N")


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
            f"{f'{place}: ' if place else ''}{_MICRO} and {_BATCH} follow from each other by the number of devices, "
            "which nothing tells.\nGive --devices N, the number of all devices of the training."
        )
        raise MigrateError(msg)
    shared = 1
    for name in _LAYOUT:
        shared *= max(1, whole(settings, name, 1))
    if number < 1 or number % shared:
        sizes = " x ".join(f"{name} {settings.value(name, 1)}" for name in _LAYOUT)
        msg = f"{number} devices are no multiple of {shared} ({sizes}).\nGive --devices N, or another layout."
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
    given = settings.value(_TYPE)
    if given is None:
        of_params = stated(settings, f"{_PARAMS}.adam_w_mode")
        coupled = settings.value(f"{_PARAMS}.adam_w_mode") is False
        return Derived("adam" if coupled else "adamw", of_params) if of_params else None
    if str(given).lower() not in _ADAMS:
        return in_place("adamw", _TYPE, f"{given} is not offered; adamw stands in its place")
    coupled = settings.value(f"{_PARAMS}.adam_w_mode") is False
    return Derived("adam" if coupled else "adamw", (_TYPE, *stated(settings, f"{_PARAMS}.adam_w_mode")))


def lr(settings: Settings) -> Derived | None:
    """Return the highest learning rate: 0.001 for an optimizer that states none."""
    given = settings.value(f"{_PARAMS}.lr")
    if given is None:
        if not any(name.startswith("optimizer.") for name in settings.stated):
            return None
        return Derived(0.001, (), "GPT-NeoX's where optimizer.params has none")
    return Derived(given, (f"{_PARAMS}.lr",))


def _beta(settings: Settings, number: int) -> Derived | None:
    path = f"{_PARAMS}.betas"
    given = settings.value(path)
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2:
        raise refused(settings, path, f"{given!r} is not a list of two numbers", "Give such as [0.9, 0.95]")
    return Derived(given[number], (path,))


def weight_decay(settings: Settings) -> Derived:
    """Return the weight decay, which stands beside the optimizer."""
    path = f"{_PARAMS}.weight_decay"
    if settings.value(path) is not None:
        why = f"GPT-NeoX gives Adam weight_decay {settings.value('weight_decay')} beside it, and stops"
        raise refused(settings, path, why, "Remove it, and set weight_decay outside of optimizer")
    return Derived(settings.value("weight_decay"), ("weight_decay",))


def clip_grad(settings: Settings) -> Derived | None:
    """Return the norm to which gradients are clipped."""
    flag, given = settings.program.flags.get("gradient_clipping"), settings.value("gradient_clipping")
    if given is None:
        return None
    untold = bool(given) and flag is not None and flag.default == given
    note = f"{given} is GPT-NeoX's default, of which it does not tell DeepSpeed; one whose own is 0 clips nothing then"
    return Derived(given, ("gradient_clipping",), note if untold else "")


def lr_decay_style(settings: Settings) -> Derived:
    """Return how the learning rate falls, and what is different about it here."""
    given = str(settings.value(_DECAY, "linear")).lower()
    if given not in _STYLES:
        change = f"{given}, a halving until lr_decay_iters, is not offered; linear stands in its place"
        return Derived("linear", (), lost=((_DECAY, change if given == "exponential" else f"{given} is not offered"),))
    change = _difference(settings, given)
    return Derived(given, (_DECAY,), lost=((_DECAY, change),) if change else ())


def _difference(settings: Settings, style: str) -> str:
    least = settings.value("min_lr", 0.0)
    if style == "constant":
        return ""
    if decays_too_long(settings):
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
        why = f"{fraction} of the training is no length of the decay"
        raise refused(settings, "lr_decay_fraction", why, "Give a part such as 0.9")
    return Derived(max(1, math.floor(length * part)), ("lr_decay_fraction",), f"{fraction} x {length}")


FUNCTIONS: Mapping[str, Function] = {
    "train.micro_batch_size": micro_batch_size,
    "train.global_batch_size": global_batch_size,
    "optimizer.name": optimizer_name,
    "optimizer.lr": lr,
    "optimizer.adam_beta1": partial(_beta, number=0),
    "optimizer.adam_beta2": partial(_beta, number=1),
    "optimizer.adam_eps": partial(taken, name=f"{_PARAMS}.eps"),
    "optimizer.weight_decay": weight_decay,
    "optimizer.clip_grad": clip_grad,
    "schedule.lr_decay_style": lr_decay_style,
    "schedule.lr_decay_iters": lr_decay_iters,
}
