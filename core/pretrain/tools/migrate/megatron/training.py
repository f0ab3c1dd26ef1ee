"""Batches, the training's length, the optimizer and its schedule."""

# Sources: validate_args; get_optimizer_param_scheduler in megatron/training/training.py; AnnealingLR in
# megatron/learning_rates.py of the versions before 2022; get_megatron_optimizer.

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, get_args

from pretrain.errors import MigrateError
from pretrain.recipe.checks.training import SLOWEST_IN_BF16
from pretrain.recipe.sections.optimizer import StateDtype
from pretrain.tools.migrate.megatron.parallel import place_of
from pretrain.tools.migrate.setting import Derived, in_place, taken, taken_if_on, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Function, Settings

_SHARED = (
    *("tensor_model_parallel_size", "model_parallel_size", "pipeline_model_parallel_size"),
    *("context_parallel_size", "ds_sequence_parallel_size"),
)
"""Sizes of groups of devices that compute the same samples; of the first two a version has one."""

_ONLY_EVALUATE = ("skip_train", "eval_only")

_OTHER_FORMULAS = ("megatron-lm-1.0", "megatron-lm-2020.08")
_OTHER_FORMULA = (
    "there it falls from lr towards 0, not below min_lr, by the iterations after the warm-up / lr_decay_iters; "
    "here it falls from lr to min_lr between the end of the warm-up and the end of the decay"
)
_FRACTIONS = ("lr_warmup_fraction", "warmup")


def micro_batch_size(settings: Settings) -> Derived | None:
    """Return the samples of a rank, which the versions of 2019 call --batch-size."""
    name = settings.first("micro_batch_size", "batch_size")
    return taken(settings, name) if name else None


def global_batch_size(settings: Settings) -> Derived | None:
    """Return the samples of a step: by default one micro batch a replica, and so before --global-batch-size was."""
    stated, micro = taken(settings, "global_batch_size"), micro_batch_size(settings)
    if stated is not None or micro is None:
        return stated
    replicas = data_parallel_size(settings)
    if replicas is None:
        msg = (
            "The global batch is one micro batch per replica, but no source gives the number of devices.\n"
            "Give --devices N, the number of all devices of the training."
        )
        raise MigrateError(msg)
    note = f"one micro batch on each of {replicas} replica{'s' * (replicas > 1)}"
    return Derived(micro.value * replicas, micro.names, note)


def data_parallel_size(settings: Settings) -> int | None:
    """Return the number of replicas; None if the number of devices is not known."""
    if settings.devices is None:
        return None
    sizes = {name: settings.value(name) for name in _SHARED if settings.value(name) is not None}
    shared = int(math.prod(sizes.values()))
    if min(sizes.values(), default=1) < 1 or settings.devices % shared:
        of = " x ".join(f"{name} {size}" for name, size in sizes.items())
        msg = f"{settings.devices} devices are not a multiple of {shared} ({of}).\nGive --devices N, or another layout."
        raise MigrateError(msg)
    return settings.devices // shared


def train_iters(settings: Settings) -> Derived | None:
    """Return the length in iterations, unless samples or tokens end the training; 0 only evaluates."""
    if skipped := settings.first_on(*_ONLY_EVALUATE):
        return Derived(0, (skipped,), "nothing is trained, only evaluated")
    stated = settings.value("train_iters")
    if stated is None or train_samples(settings) is not None:
        return None
    tokens = settings.value("train_tokens")
    idle = () if tokens is None else (("train_tokens", "the iterations end before the tokens do"),)
    return Derived(stated, ("train_iters",), idle=idle)


def train_samples(settings: Settings) -> Derived | None:
    """Return the length in samples: those of --train-tokens, if they come first."""
    if settings.first_on(*_ONLY_EVALUATE):
        return None
    samples, tokens, length = (settings.value(name) for name in ("train_samples", "train_tokens", "seq_length"))
    if tokens is None or not length:
        return taken(settings, "train_samples")
    of_tokens, batch = -(-tokens // length), settings.value("global_batch_size")
    if batch and batch > 0 and settings.value("rampup_batch_size") is None:
        of_tokens = int(-(-of_tokens // batch) * batch)  # the program begins one more step while tokens are left
    limit = samples_without_tokens(settings)
    if limit is not None and limit <= of_tokens:
        if samples is None:
            return None
        return Derived(samples, ("train_samples",), idle=(("train_tokens", "the samples end before the tokens do"),))
    return Derived(of_tokens, ("train_tokens", "seq_length"), f"{tokens} tokens / {length}")


def samples_without_tokens(settings: Settings) -> int | None:
    """Return the length in samples that --train-samples or --train-iters gives; None without, or as the batch grows."""
    samples, iters = settings.value("train_samples"), settings.value("train_iters")
    if samples is not None or not iters or settings.value("rampup_batch_size") is not None:
        return None if samples is None else int(samples)
    batch = global_batch_size(settings)
    return None if batch is None else int(iters * batch.value)


def rampup_batch_size(settings: Settings) -> Derived | None:
    """Return [start, increment, samples]."""
    name = "rampup_batch_size"
    given = settings.value(name)
    if given is None:
        return None
    try:
        start, increment, samples = (int(number) for number in given)
    except ValueError as error:
        shown = " ".join(map(str, given)) or "nothing"
        msg = (
            f"{place_of(settings, name)}: {shown} is not three whole numbers.\n"
            "They are the first batch, its increment and the samples over which it grows: give all three."
        )
        raise MigrateError(msg) from error
    return Derived([start, increment, samples], (name,))


def iterations_to_skip(settings: Settings) -> Derived | None:
    """Return the iterations that are left out, which the program counts from 0."""
    name = "iterations_to_skip"
    given = settings.value(name)
    return Derived([int(number) + 1 for number in given], (name,)) if given else None


def manual_gc_interval(settings: Settings) -> Derived | None:
    """Return the iterations between two collections; 0 leaves the interval as it is here."""
    name = "manual_gc_interval"
    return taken_if_on(settings, name) if name in settings.stated else None


def lr_warmup_fraction(settings: Settings) -> Derived | None:
    """Return the warm-up as a fraction of the decay; --warmup of 2019 is one too."""
    if not _is_fraction_of_decay(settings):
        return None
    return taken(settings, settings.first(*_FRACTIONS))


def lr_decay_style(settings: Settings) -> Derived | None:
    """Return how the learning rate falls; before v2.0 the formulas were others (AnnealingLR.get_lr)."""
    name = "lr_decay_style"
    given = settings.value(name)
    if given is None or given == "constant" or settings.program.name not in _OTHER_FORMULAS:
        return taken(settings, name)
    style = given if given in {"linear", "cosine"} else "linear"
    instead = "" if style == given else f"; {style} is used instead of {given}"
    return Derived(style, (name,), lost=((name, f"{_OTHER_FORMULA}{instead}"),))


def lr_warmup_iters(settings: Settings) -> Derived | None:
    """Return the warm-up in iterations, of a training that counts iterations."""
    if _is_in_samples(settings) or _is_fraction_of_decay(settings):
        return None
    if _warms_up_by_steps(settings):
        return _of_fraction(settings, ("lr_decay_iters", "train_iters"))
    found = _in_tokens(settings, "lr_warmup_tokens", in_steps=True)
    return _with_start(settings, found) or taken_if_on(settings, "lr_warmup_iters")


def lr_warmup_samples(settings: Settings) -> Derived | None:
    """Return the warm-up in samples, of a training that counts samples."""
    if not _is_in_samples(settings) or _is_fraction_of_decay(settings):
        return None
    if _warms_up_by_steps(settings):
        return _of_fraction(settings, ("lr_decay_samples", "train_samples"))
    found = _with_start(settings, _in_tokens(settings, "lr_warmup_tokens"))
    stated = taken_if_on(settings, "lr_warmup_samples")
    return found or stated or _in_iterations(settings, "lr_warmup_iters")


def lr_decay_iters(settings: Settings) -> Derived | None:
    """Return the end of the decay in iterations, of a training that counts iterations."""
    if _is_in_samples(settings):
        return None
    return _in_tokens(settings, "lr_decay_tokens", in_steps=True) or taken_if_on(settings, "lr_decay_iters")


def lr_decay_samples(settings: Settings) -> Derived | None:
    """Return the end of the decay in samples, of a training that counts samples."""
    length = train_samples(settings)
    if length is None:
        return None
    found = _in_tokens(settings, "lr_decay_tokens") or taken_if_on(settings, "lr_decay_samples")
    found = found or _in_iterations(settings, "lr_decay_iters")
    if "train_tokens" not in length.names:
        return found
    name = "train_iters" if settings.value("train_samples") is None else "train_samples"
    if found is None:
        return _of_length(settings, name)
    return replace(found, idle=(*found.idle, (name, "--train-tokens ends the training earlier")))


def optimizer_name(settings: Settings) -> Derived:
    """Return which Adam it is: Megatron's adam has decoupled weight decay."""
    given = settings.value("optimizer", "adam")
    if given == "muon":
        hint = "its flags are not read: set optimizer.name: muon and its keys by hand"
        return in_place("adamw", "optimizer", f"adamw is used instead of {given}; {hint}")
    if given != "adam":
        return in_place("adamw", "optimizer", f"{given} is not supported; adamw is used instead")
    return Derived("adamw", ("optimizer",))


def _state_dtype(settings: Settings, state: str, decay: str) -> Derived | None:
    """Return how Adam keeps a state: bf16 where it can, else fp32."""
    name = f"{state}_dtype"
    given, beta = settings.value(name), settings.value(decay)
    if given is None:
        return None
    if not settings.value("use_precision_aware_optimizer"):
        return unused(name, "it belongs to use_precision_aware_optimizer")
    if given not in get_args(StateDtype):
        return in_place("fp32", name, f"the state is fp32: {given} would need scales, which it does not have here")
    if given == "bf16" and beta is not None and beta >= SLOWEST_IN_BF16:
        return in_place("fp32", name, f"the state is fp32: with {decay} {beta} one in bf16 would never fall")
    return Derived(given, (name,))


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
    return train_samples(settings) is not None


def _has_fraction(settings: Settings) -> bool:
    return settings.value("lr_warmup_tokens") is None and bool(settings.first(*_FRACTIONS))


def _is_fraction_of_decay(settings: Settings) -> bool:
    return _has_fraction(settings) and not _warms_up_by_steps(settings)


def _warms_up_by_steps(settings: Settings) -> bool:
    """Say whether the warm-up is a fraction of steps, and the decay ends by its tokens."""
    return settings.value("lr_decay_tokens") is not None and _has_fraction(settings)


def _of_length(settings: Settings, name: str) -> Derived | None:
    """Return the end of the decay where --train-tokens ends the training before: the program's other length."""
    if settings.value(name) is None:
        return None
    samples = samples_without_tokens(settings)
    if samples is None:
        change = "there the decay ends with the iterations, which cannot be converted to samples as the batch grows"
        return in_place(None, name, change)
    return Derived(samples, (name,), "the decay ends there, although the tokens end the training earlier")


def _of_fraction(settings: Settings, lengths: tuple[str, ...]) -> Derived | None:
    """Return a warm-up that is a fraction of a length other than the tokens of the decay."""
    fraction, name = settings.value("lr_warmup_fraction", 0.0), "lr_warmup_fraction"
    length = settings.first_on(*lengths)
    total = settings.value(length) if length else samples_without_tokens(settings)
    if any(settings.value(decay) and decay not in lengths for decay in ("lr_decay_iters", "lr_decay_samples")):
        total = None
    if total is None or not 0 <= fraction <= 1:
        return in_place(None, name, "the length of which it is a fraction is not known")
    of = length or "train_iters in samples"
    return Derived(round(fraction * total), (name,), f"{fraction:g} x {total}, {of}: not of lr_decay_tokens")


def _with_start(settings: Settings, warmup: Derived | None) -> Derived | None:
    """Return a warm-up in tokens with what is lost of it: the decay by steps does not look at it there."""
    if warmup is None or settings.value("lr_decay_tokens") is not None:
        return warmup
    change = "here the decay starts at its end, there after --lr-warmup-iters or --lr-warmup-samples"
    return replace(warmup, lost=(*warmup.lost, ("lr_warmup_tokens", change)))


def _in_tokens(settings: Settings, name: str, *, in_steps: bool = False) -> Derived | None:
    """Return a length that Megatron-DeepSpeed counts in tokens, in samples or in steps of so many samples."""
    tokens, length = settings.value(name), settings.value("seq_length")
    if tokens is None or not length or length < 1:
        return None
    per = _batch(settings) if in_steps else 1
    if per is None or per < 1:
        return in_place(None, name, "the batch grows, so tokens cannot be converted to iterations")
    note = f"{tokens} tokens / {length}" + (f" / {per}" if per > 1 else "")
    return Derived(max(1, tokens // (length * per)), (name, "seq_length"), note)


def _in_iterations(settings: Settings, name: str) -> Derived | None:
    given = settings.value(name)
    if not given:
        return None
    batch = _batch(settings)
    if batch is None:
        return in_place(None, name, "the batch grows, so iterations cannot be converted to samples")
    return Derived(given * batch, (name, "global_batch_size"), f"{given} iterations of {batch}")


def _batch(settings: Settings) -> int | None:
    """Return the samples of every iteration; None if they change."""
    batch = global_batch_size(settings)
    return None if batch is None or settings.value("rampup_batch_size") is not None else int(batch.value)


FUNCTIONS: Mapping[str, Function] = {
    "train.micro_batch_size": micro_batch_size,
    "train.global_batch_size": global_batch_size,
    "train.rampup_batch_size": rampup_batch_size,
    "train.iterations_to_skip": iterations_to_skip,
    "train.train_iters": train_iters,
    "train.train_samples": train_samples,
    "train.manual_gc_interval": manual_gc_interval,
    "optimizer.name": optimizer_name,
    "optimizer.weight_decay": weight_decay,
    "optimizer.exp_avg_dtype": partial(_state_dtype, state="exp_avg", decay="adam_beta1"),
    "optimizer.exp_avg_sq_dtype": partial(_state_dtype, state="exp_avg_sq", decay="adam_beta2"),
    "schedule.lr_decay_style": lr_decay_style,
    "schedule.lr_warmup_fraction": lr_warmup_fraction,
    "schedule.lr_warmup_iters": lr_warmup_iters,
    "schedule.lr_warmup_samples": lr_warmup_samples,
    "schedule.lr_decay_iters": lr_decay_iters,
    "schedule.lr_decay_samples": lr_decay_samples,
}
