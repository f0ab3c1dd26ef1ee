"""Flags of batches, of the training's length, and of the optimizer and its schedule.

validate_args; get_optimizer_param_scheduler in megatron/training/training.py; AnnealingLR in megatron/learning_rates.py
of the versions before 2022; get_megatron_optimizer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.meaning import Ignored, Mapped, NoEffect, NotSupported, Replaced, alike
from pretrain.tools.migrate.megatron.stages import place_of
from pretrain.tools.migrate.setting import Derived

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Function, Settings


_MICRO = "micro_batch_size, called batch_size before the end of 2020"
_LENGTH = "the first end of train_iters, train_samples and train_tokens"
_SAMPLES = "tokens / model.seq_length"
_WARMUP = "in iterations, samples or a fraction, as the training's length is counted"
_DECAY = "in iterations or samples, as the training's length is counted"
_NO_TRAINING = "0 with skip_train or eval_only: only the evaluation is done"
_MUON = "it belongs to optimizer muon, and adam does not read it"
_LION = "it belongs to optimizer lion, and adam does not read it"
_FROM_ZERO = "each number one higher: here iterations are numbered from 1, as in the log"
_SKIPPED = "its ranges are not taken over: write them into train.iterations_to_skip, such as 100-300"

LENGTH: dict[str, Meaning] = {
    "micro_batch_size": Mapped("train.micro_batch_size", how=_MICRO),
    "batch_size": Mapped("train.micro_batch_size", how=_MICRO),
    "global_batch_size": Mapped(
        "train.global_batch_size", how="by default micro_batch_size x the number of data-parallel replicas"
    ),
    "rampup_batch_size": Mapped("train.rampup_batch_size", how="its three numbers as a list"),
    "train_iters": Mapped("train.train_iters", how=_LENGTH),
    "train_samples": Mapped("train.train_samples", how=_LENGTH),
    "train_tokens": Mapped("train.train_samples", how=_SAMPLES),
    "skip_train": Mapped("train.train_iters", {True: 0}, _NO_TRAINING),
    "eval_only": Mapped("train.train_iters", {True: 0}, _NO_TRAINING),
    "exit_interval": Mapped("train.exit_interval"),
    "exit_duration_in_mins": Mapped("train.exit_duration_in_mins"),
    "kill_switch_path": Mapped("train.kill_switch_path"),
    "kill_switch_file": Mapped("train.kill_switch_path"),
    "seed": Mapped("train.seed"),
    "deterministic_mode": Mapped("train.deterministic_mode"),
    "calculate_per_token_loss": Mapped("train.calculate_per_token_loss"),
    "manual_gc": Mapped("train.manual_gc"),
    "manual_gc_interval": Mapped("train.manual_gc_interval", how="0, never between evaluations, keeps the default"),
    "manual_gc_eval": NoEffect("the collector runs at multiples of train.manual_gc_interval, around evaluations too"),
    "exit_signal_handler": NoEffect("SIGTERM and Ctrl-C always save a checkpoint and exit"),
    "exit_signal": NotSupported(
        "SIGTERM and Ctrl-C save a checkpoint and exit; other signals do not", ("SIGTERM", "SIGINT")
    ),
    **alike(
        NoEffect("SIGTERM and Ctrl-C always save a checkpoint and exit, and end all processes of the run"),
        "exit_signal_handler_for_dataloader exit_signal_handler_for_training",
    ),
    "adlr_autoresume": Replaced("--resume auto continues a run that its cluster has ended"),
    "adlr_autoresume_interval": Replaced("--resume auto continues a run that its cluster has ended"),
    "step_batch_size_schedule": NotSupported("the global batch is constant, or grows as train.rampup_batch_size says"),
    "decrease_batch_size_if_needed": NotSupported("a global batch that the replicas do not divide is refused"),
    "iterations_to_skip": Mapped("train.iterations_to_skip", how=_FROM_ZERO),
    "skip_train_iteration_range": NotSupported(_SKIPPED),
    "train_sync_interval": NoEffect("it keeps the host from running ahead of the device, and changes no number"),
    "empty_unused_memory_level": NoEffect("the device's plugin has its allocator"),
}
"""Flags of batches, of the training's length and its end."""

OPTIMIZER: dict[str, Meaning] = {
    "optimizer": Mapped(
        "optimizer.name",
        {"adam": "adamw"},
        "adam has decoupled weight decay there; there is no sgd, muon or lion",
        "which Megatron calls adam; there is no sgd",
    ),
    "lr": Mapped("optimizer.lr"),
    "adam_beta1": Mapped("optimizer.adam_beta1"),
    "adam_beta2": Mapped("optimizer.adam_beta2"),
    "adam_eps": Mapped("optimizer.adam_eps"),
    "weight_decay": Mapped("optimizer.weight_decay", how="constant over the training"),
    "clip_grad": Mapped("optimizer.clip_grad"),
    "start_weight_decay": NotSupported("weight decay is constant: optimizer.weight_decay"),
    "end_weight_decay": Mapped("optimizer.weight_decay", how="the last value, from the start"),
    "weight_decay_incr_style": NotSupported("weight decay is constant: optimizer.weight_decay", ("constant",)),
    "sgd_momentum": Ignored("it belongs to optimizer sgd, and adam does not read it"),
    "decoupled_lr": NotSupported("embedding and output layer have the learning rate of all other weights"),
    "decoupled_min_lr": NotSupported("embedding and output layer have the learning rate of all other weights"),
    "apply_wd_to_qk_layernorm": NotSupported("norms and biases have no weight decay"),
    "no_weight_decay_cond_type": NotSupported("norms and biases have no weight decay"),
    "dump_param_to_param_group_map": NotSupported("no file of parameter groups is written"),
    "use_bnb_optimizer": NotSupported("the moments of Adam are kept in fp32, not in 8 bits: they take more memory"),
    "ds_fused_adam": NoEffect("it computes the same Adam; the kernel is chosen by kernels.optimizer"),
    **alike(
        Ignored(_MUON),
        "muon_* use_layer_wise_param_layout",
    ),
    **alike(Ignored(_LION), "lion_*"),
}
"""Flags of the optimizer."""

SCHEDULE: dict[str, Meaning] = {
    "lr_decay_style": Mapped("schedule.lr_decay_style"),
    "min_lr": Mapped("schedule.min_lr"),
    "lr_warmup_iters": Mapped("schedule.lr_warmup_iters", how=_WARMUP),
    "lr_warmup_samples": Mapped("schedule.lr_warmup_samples", how=_WARMUP),
    "lr_warmup_fraction": Mapped("schedule.lr_warmup_fraction", how=_WARMUP),
    "warmup": Mapped("schedule.lr_warmup_fraction", how=_WARMUP),
    "lr_warmup_tokens": Mapped("schedule.lr_warmup_samples", how=_SAMPLES),
    "lr_decay_iters": Mapped("schedule.lr_decay_iters", how=_DECAY),
    "lr_decay_samples": Mapped("schedule.lr_decay_samples", how=_DECAY),
    "lr_decay_tokens": Mapped("schedule.lr_decay_samples", how=_SAMPLES),
    "lr_wsd_decay_style": Mapped("schedule.lr_wsd_decay_style"),
    "lr_wsd_decay_iters": Mapped("schedule.lr_wsd_decay_iters"),
    "lr_wsd_decay_samples": Mapped("schedule.lr_wsd_decay_samples"),
    "override_opt_param_scheduler": Mapped("schedule.override_opt_param_scheduler"),
    "override_lr_scheduler": Mapped("schedule.override_opt_param_scheduler"),
    "use_checkpoint_opt_param_scheduler": Mapped("schedule.use_checkpoint_opt_param_scheduler"),
    "use_checkpoint_lr_scheduler": Mapped("schedule.use_checkpoint_opt_param_scheduler"),
    "lr_warmup_init": NotSupported("the warm-up starts at 0"),
    "head_lr_mult": NotSupported("all weights have one learning rate", (1, 1.0)),
}
"""Flags of the learning rate over the training."""

TRAINING = LENGTH | OPTIMIZER | SCHEDULE
"""All of them, by dest."""


_SHARED = (
    "tensor_model_parallel_size",
    "model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "ds_sequence_parallel_size",
)
"""Sizes of groups of devices that compute the same samples; of the first two a version has one."""

_ONLY_EVALUATE = ("skip_train", "eval_only")


def micro_batch_size(settings: Settings) -> Derived | None:
    """Return the samples of a rank, which the versions of 2019 call --batch-size."""
    name = next((name for name in ("micro_batch_size", "batch_size") if settings.value(name) is not None), None)
    return None if name is None else Derived(settings.value(name), (name,))


def global_batch_size(settings: Settings) -> Derived | None:
    """Return the samples of a step: by default one micro batch a replica, and so before --global-batch-size was."""
    stated, micro = settings.value("global_batch_size"), micro_batch_size(settings)
    if stated is not None:
        return Derived(stated, ("global_batch_size",))
    if micro is None:
        return None
    replicas = data_parallel_size(settings)
    if replicas is None:
        msg = (
            "The global batch is one micro batch a replica, and nothing says how many devices there are.\n"
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
        msg = f"{settings.devices} devices are no multiple of {shared} ({of}).\nGive --devices N, or another layout."
        raise MigrateError(msg)
    return settings.devices // shared


def train_iters(settings: Settings) -> Derived | None:
    """Return the length in iterations, unless samples or tokens end the training; 0 only evaluates."""
    if skipped := next((name for name in _ONLY_EVALUATE if settings.value(name)), None):
        return Derived(0, (skipped,), "nothing is trained, only evaluated")
    stated = settings.value("train_iters")
    if stated is None or train_samples(settings) is not None:
        return None
    tokens = settings.value("train_tokens")
    idle = () if tokens is None else (("train_tokens", "the iterations end before the tokens do"),)
    return Derived(stated, ("train_iters",), idle=idle)


def train_samples(settings: Settings) -> Derived | None:
    """Return the length in samples: those of --train-tokens, if they come first."""
    if any(settings.value(name) for name in _ONLY_EVALUATE):
        return None
    samples, tokens, length = (settings.value(name) for name in ("train_samples", "train_tokens", "seq_length"))
    if tokens is None or not length:
        return None if samples is None else Derived(samples, ("train_samples",))
    of_tokens = _in_whole_steps(settings, -(-tokens // length))
    limit = samples_without_tokens(settings)
    if limit is not None and limit <= of_tokens:
        if samples is None:
            return None
        return Derived(samples, ("train_samples",), idle=(("train_tokens", "the samples end before the tokens do"),))
    return Derived(of_tokens, ("train_tokens", "seq_length"), f"{tokens} tokens / {length}")


def _in_whole_steps(settings: Settings, samples: int) -> int:
    """Return samples rounded up to steps, of which the program begins one more as long as tokens are left."""
    batch = settings.value("global_batch_size")
    if not batch or batch < 1 or settings.value("rampup_batch_size") is not None:
        return samples
    return int(-(-samples // batch) * batch)


def samples_without_tokens(settings: Settings) -> int | None:
    """Return the length in samples that --train-samples or --train-iters gives; None without, or as the batch grows."""
    samples, iters = settings.value("train_samples"), settings.value("train_iters")
    if samples is not None or not iters or settings.value("rampup_batch_size") is not None:
        return None if samples is None else int(samples)
    batch = global_batch_size(settings)
    return None if batch is None else int(iters * batch.value)


def is_ended_by_tokens(settings: Settings) -> bool:
    """Say whether --train-tokens ends the training."""
    found = train_samples(settings)
    return found is not None and "train_tokens" in found.names


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


FUNCTIONS: Mapping[str, Function] = {
    "train.micro_batch_size": micro_batch_size,
    "train.global_batch_size": global_batch_size,
    "train.rampup_batch_size": rampup_batch_size,
    "train.iterations_to_skip": iterations_to_skip,
    "train.train_iters": train_iters,
    "train.train_samples": train_samples,
}
"""By key of the recipe."""
