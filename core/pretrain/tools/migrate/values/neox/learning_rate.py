"""Keys of the sections `optimizer` and `schedule` that several settings make together.

`get_optimizer`, `get_learning_rate_scheduler` (megatron/training.py), `calculate_derived`
(megatron/neox_arguments/arguments.py) and `AnnealingLR` (megatron/learning_rates.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pretrain.tools.migrate.values.neox.behaviour import decays_too_long
from pretrain.tools.migrate.values.neox.nested import inner, number, refused, stated, whole
from pretrain.tools.migrate.values.worked import Worked

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings

_TYPE, _PARAMS = "optimizer.type", "optimizer.params"
_ADAMS = {"adam", "cpu_adam", "cpu_torch_adam"}
_STYLES = {"constant", "linear", "cosine"}
_DECAY = "lr_decay_style"
_LONGEST = 1000
"""Trainings that a decay may last: GPT-NeoX allows any, the arithmetic does not."""


def optimizer_name(settings: Settings) -> Worked | None:
    """Return which Adam it is; DeepSpeed's and apex's Adam have decoupled weight decay."""
    given = inner(settings, _TYPE)
    if given is None:
        of_params = stated(settings, f"{_PARAMS}.adam_w_mode")
        coupled = inner(settings, f"{_PARAMS}.adam_w_mode") is False
        return Worked("adam" if coupled else "adamw", of_params) if of_params else None
    if str(given).lower() not in _ADAMS:
        return Worked("adamw", (), lost=((_TYPE, f"{given} is not offered; adamw stands in its place"),))
    coupled = inner(settings, f"{_PARAMS}.adam_w_mode") is False
    return Worked("adam" if coupled else "adamw", (_TYPE, *stated(settings, f"{_PARAMS}.adam_w_mode")))


def lr(settings: Settings) -> Worked | None:
    """Return the highest learning rate: 0.001 for an optimizer that states none."""
    given = inner(settings, f"{_PARAMS}.lr")
    if given is None:
        if not any(name.startswith("optimizer.") for name in settings.stated):
            return None
        return Worked(0.001, (), "GPT-NeoX's where optimizer.params has none")
    return Worked(given, (f"{_PARAMS}.lr",))


def adam_beta1(settings: Settings) -> Worked | None:
    """Return the decay of the mean of the gradient."""
    return _beta(settings, 0)


def adam_beta2(settings: Settings) -> Worked | None:
    """Return the decay of the mean of its square."""
    return _beta(settings, 1)


def _beta(settings: Settings, number: int) -> Worked | None:
    path = f"{_PARAMS}.betas"
    given = inner(settings, path)
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2:
        raise refused(settings, path, f"{given!r} is not a list of two numbers", "Give such as [0.9, 0.95]")
    return Worked(given[number], (path,))


def adam_eps(settings: Settings) -> Worked | None:
    """Return what is added to the denominator of the update."""
    given = inner(settings, f"{_PARAMS}.eps")
    return None if given is None else Worked(given, (f"{_PARAMS}.eps",))


def weight_decay(settings: Settings) -> Worked:
    """Return the weight decay, which stands beside the optimizer.

    Raises:
        MigrateError: it stands in optimizer.params, where GPT-NeoX gives Adam both and stops.
    """
    path = f"{_PARAMS}.weight_decay"
    if inner(settings, path) is not None:
        why = f"GPT-NeoX gives Adam weight_decay {settings.value('weight_decay')} beside it, and stops"
        raise refused(settings, path, why, "Remove it, and set weight_decay outside of optimizer")
    return Worked(settings.value("weight_decay"), ("weight_decay",))


def clip_grad(settings: Settings) -> Worked | None:
    """Return the norm to which gradients are clipped."""
    flag, given = settings.program.flags.get("gradient_clipping"), settings.value("gradient_clipping")
    if given is None:
        return None
    untold = bool(given) and flag is not None and flag.default == given
    note = f"{given} is GPT-NeoX's default, of which it does not tell DeepSpeed; one whose own is 0 clips nothing then"
    return Worked(given, ("gradient_clipping",), note if untold else "")


def lr_decay_style(settings: Settings) -> Worked:
    """Return how the learning rate falls, and what is different about it here."""
    given = str(settings.value(_DECAY, "linear")).lower()
    if given not in _STYLES:
        change = f"{given}, a halving until lr_decay_iters, is not offered; linear stands in its place"
        return Worked("linear", (), lost=((_DECAY, change if given == "exponential" else f"{given} is not offered"),))
    change = _difference(settings, given)
    return Worked(given, (_DECAY,), lost=((_DECAY, change),) if change else ())


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


def lr_decay_iters(settings: Settings) -> Worked | None:
    """Return the end of the decay: stated, or a part of the training.

    Raises:
        MigrateError: the part is out of range.
    """
    fraction, length = settings.value("lr_decay_fraction"), whole(settings, "train_iters", 0)
    if settings.value("lr_decay_iters") is not None:
        idle = (("lr_decay_fraction", "lr_decay_iters wins"),) if fraction is not None else ()
        return Worked(whole(settings, "lr_decay_iters", 1), ("lr_decay_iters",), idle=idle)
    if fraction is None or not length:
        return None
    part = number(settings, "lr_decay_fraction", 1)
    if not 0 <= part <= _LONGEST:
        why = f"{fraction} of the training is no length of the decay"
        raise refused(settings, "lr_decay_fraction", why, "Give a part such as 0.9")
    return Worked(max(1, math.floor(length * part)), ("lr_decay_fraction",), f"{fraction} x {length}")
