"""Keys of the sections `schedule` and `optimizer` that several flags make together.

get_optimizer_param_scheduler (megatron/training/training.py) and AnnealingLR (megatron/learning_rates.py) before 2022.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pretrain.tools.migrate.megatron import training
from pretrain.tools.migrate.setting import Derived, in_place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Function, Settings


_OTHER_FORMULAS = ("megatron-lm-1.0", "megatron-lm-2020.08")
_OTHER_FORMULA = (
    "its rate falls there by the iterations after the warm-up / all of the decay, toward 0, and is never below min_lr; "
    "here from lr to min_lr between the warm-up and the end of the decay"
)


def lr_warmup_fraction(settings: Settings) -> Derived | None:
    """Return the warm-up as a fraction of the decay; --warmup of 2019 is one too."""
    if not _has_fraction(settings) or _warms_up_by_steps(settings):
        return None
    name = next((name for name in ("lr_warmup_fraction", "warmup") if settings.value(name) is not None), None)
    return None if name is None else Derived(settings.value(name), (name,))


def lr_decay_style(settings: Settings) -> Derived | None:
    """Return how the learning rate falls; before v2.0 the formulas were others (AnnealingLR.get_lr)."""
    name = "lr_decay_style"
    given = settings.value(name)
    if given is None or given == "constant" or settings.program.name not in _OTHER_FORMULAS:
        return None if given is None else Derived(given, (name,))
    style = given if given in {"linear", "cosine"} else "linear"
    stands = "" if style == given else f"; {style} stands in the place of {given}"
    return Derived(style, (name,), lost=((name, f"{_OTHER_FORMULA}{stands}"),))


def lr_warmup_iters(settings: Settings) -> Derived | None:
    """Return the warm-up in iterations, of a training that counts iterations."""
    if _is_in_samples(settings) or (_has_fraction(settings) and not _warms_up_by_steps(settings)):
        return None
    if _warms_up_by_steps(settings):
        return _of_fraction(settings, ("lr_decay_iters", "train_iters"))
    found = _in_tokens(settings, "lr_warmup_tokens", in_steps=True)
    return _with_start(settings, found) or _stated(settings, "lr_warmup_iters")


def lr_warmup_samples(settings: Settings) -> Derived | None:
    """Return the warm-up in samples, of a training that counts samples."""
    if not _is_in_samples(settings) or (_has_fraction(settings) and not _warms_up_by_steps(settings)):
        return None
    if _warms_up_by_steps(settings):
        return _of_fraction(settings, ("lr_decay_samples", "train_samples"))
    found = _with_start(settings, _in_tokens(settings, "lr_warmup_tokens")) or _stated(settings, "lr_warmup_samples")
    return found or _in_iterations(settings, "lr_warmup_iters")


def lr_decay_iters(settings: Settings) -> Derived | None:
    """Return the end of the decay in iterations, of a training that counts iterations."""
    if _is_in_samples(settings):
        return None
    return _in_tokens(settings, "lr_decay_tokens", in_steps=True) or _stated(settings, "lr_decay_iters")


def lr_decay_samples(settings: Settings) -> Derived | None:
    """Return the end of the decay in samples, of a training that counts samples."""
    if not _is_in_samples(settings):
        return None
    found = _in_tokens(settings, "lr_decay_tokens") or _stated(settings, "lr_decay_samples")
    found = found or _in_iterations(settings, "lr_decay_iters")
    if not training.is_ended_by_tokens(settings):
        return found
    length = "train_iters" if settings.value("train_samples") is None else "train_samples"
    if found is None:
        return _of_length(settings, length)
    return replace(found, idle=(*found.idle, (length, "--train-tokens ends the training before")))


def optimizer_name(settings: Settings) -> Derived:
    """Return which Adam it is: Megatron's adam has decoupled weight decay."""
    given = settings.value("optimizer", "adam")
    if given != "adam":
        return in_place("adamw", "optimizer", f"{given} is not offered; adamw stands in its place")
    return Derived("adamw", ("optimizer",))


def weight_decay(settings: Settings) -> Derived | None:
    """Return the weight decay, which stays the same here."""
    style = settings.value("weight_decay_incr_style", "constant")
    if style == "constant":
        ends = tuple((name, "weight decay is constant") for name in ("start_weight_decay", "end_weight_decay"))
        return Derived(settings.value("weight_decay"), ("weight_decay",), idle=ends)
    change = f"weight decay does not grow here ({style}); its last value is taken"
    last = settings.value("end_weight_decay", settings.value("weight_decay"))
    return Derived(last, ("end_weight_decay",), lost=(("weight_decay_incr_style", change),))


def _is_in_samples(settings: Settings) -> bool:
    return training.train_samples(settings) is not None


def _has_fraction(settings: Settings) -> bool:
    fractions = ("lr_warmup_fraction", "warmup")
    return settings.value("lr_warmup_tokens") is None and any(settings.value(name) is not None for name in fractions)


def _of_length(settings: Settings, name: str) -> Derived | None:
    """Return the end of the decay where --train-tokens ends the training before: the program's other length."""
    if settings.value(name) is None:
        return None
    samples = training.samples_without_tokens(settings)
    if samples is None:
        change = "the decay ends there with the iterations, whose samples are not known as the batch grows"
        return in_place(None, name, change)
    note = "the decay ends there, though the tokens end the training before"
    return Derived(samples, (name,), note)


def _warms_up_by_steps(settings: Settings) -> bool:
    """Say whether the warm-up is a fraction of steps, and the decay ends by its tokens."""
    return settings.value("lr_decay_tokens") is not None and _has_fraction(settings)


def _of_fraction(settings: Settings, lengths: tuple[str, ...]) -> Derived | None:
    """Return a warm-up that is a fraction of a length other than the tokens of the decay."""
    fraction, name = settings.value("lr_warmup_fraction", 0.0), "lr_warmup_fraction"
    length = next((length for length in lengths if settings.value(length)), None)
    total = training.samples_without_tokens(settings) if length is None else settings.value(length)
    if any(settings.value(decay) and decay not in lengths for decay in ("lr_decay_iters", "lr_decay_samples")):
        total = None
    if total is None or not 0 <= fraction <= 1:
        return in_place(None, name, "it is a fraction of a length that is not known")
    of = "train_iters in samples" if length is None else length
    return Derived(round(fraction * total), (name,), f"{fraction:g} x {total}, {of}: not of lr_decay_tokens")


def _with_start(settings: Settings, warmup: Derived | None) -> Derived | None:
    """Return a warm-up in tokens with what is lost of it: the decay by steps does not look at it there."""
    if warmup is None or settings.value("lr_decay_tokens") is not None:
        return warmup
    change = "the decay is counted from its end here, and from --lr-warmup-iters or --lr-warmup-samples there"
    return replace(warmup, lost=(*warmup.lost, ("lr_warmup_tokens", change)))


def _stated(settings: Settings, name: str) -> Derived | None:
    """Return a length as it is stated; the defaults of 0 mean none."""
    given = settings.value(name)
    return Derived(given, (name,)) if given else None


def _in_tokens(settings: Settings, name: str, *, in_steps: bool = False) -> Derived | None:
    """Return a length that Megatron-DeepSpeed counts in tokens, in samples or in steps of so many samples."""
    tokens, length = settings.value(name), settings.value("seq_length")
    if tokens is None or not length or length < 1:
        return None
    per = _batch(settings) if in_steps else 1
    if per is None or per < 1:
        return Derived(None, (), lost=((name, "the batch grows, so that its tokens are not a number of iterations"),))
    note = f"{tokens} tokens / {length}" + (f" / {per}" if per > 1 else "")
    return Derived(max(1, tokens // (length * per)), (name, "seq_length"), note)


def _in_iterations(settings: Settings, name: str) -> Derived | None:
    """Return a length that is stated in iterations, in samples."""
    given = settings.value(name)
    if not given:
        return None
    batch = _batch(settings)
    if batch is None:
        return Derived(None, (), lost=((name, "the batch grows, so that its iterations are not a number of samples"),))
    return Derived(given * batch, (name, "global_batch_size"), f"{given} iterations of {batch}")


def _batch(settings: Settings) -> int | None:
    """Return the samples of every iteration; None if they change."""
    batch = training.global_batch_size(settings)
    return None if batch is None or settings.value("rampup_batch_size") is not None else int(batch.value)


FUNCTIONS: Mapping[str, Function] = {
    "optimizer.name": optimizer_name,
    "optimizer.weight_decay": weight_decay,
    "schedule.lr_decay_style": lr_decay_style,
    "schedule.lr_warmup_fraction": lr_warmup_fraction,
    "schedule.lr_warmup_iters": lr_warmup_iters,
    "schedule.lr_warmup_samples": lr_warmup_samples,
    "schedule.lr_decay_iters": lr_decay_iters,
    "schedule.lr_decay_samples": lr_decay_samples,
}
"""By key of the recipe."""
