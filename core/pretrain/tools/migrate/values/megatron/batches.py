"""Keys of the section `train` that several flags make together: batches, and the length of the training.

validate_args (megatron/training/arguments.py); the while loop of `train` in Megatron-DeepSpeed's megatron/training.py
for --train-tokens, which ends a training that --train-samples or --train-iters would let run longer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.values.megatron.stated_place import place_of
from pretrain.tools.migrate.values.worked import Worked

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings

_SHARED = (
    "tensor_model_parallel_size",
    "model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "ds_sequence_parallel_size",
)
"""Sizes of groups of devices that compute the same samples; of the first two a version has one."""

_ONLY_EVALUATE = ("skip_train", "eval_only")


def micro_batch_size(settings: Settings) -> Worked | None:
    """Return the samples of a rank, which the versions of 2019 call --batch-size."""
    name = next((name for name in ("micro_batch_size", "batch_size") if settings.value(name) is not None), None)
    return None if name is None else Worked(settings.value(name), (name,))


def global_batch_size(settings: Settings) -> Worked | None:
    """Return the samples of a step: by default one micro batch a replica, and so before --global-batch-size was.

    Raises:
        MigrateError: it follows from the number of devices, which nothing tells.
    """
    stated, micro = settings.value("global_batch_size"), micro_batch_size(settings)
    if stated is not None:
        return Worked(stated, ("global_batch_size",))
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
    return Worked(micro.value * replicas, micro.names, note)


def data_parallel_size(settings: Settings) -> int | None:
    """Return the number of replicas; None if the number of devices is not known.

    Raises:
        MigrateError: the devices are no multiple of those that hold one replica.
    """
    if settings.devices is None:
        return None
    sizes = {name: settings.value(name) for name in _SHARED if settings.value(name) is not None}
    shared = int(math.prod(sizes.values()))
    if min(sizes.values(), default=1) < 1 or settings.devices % shared:
        of = " x ".join(f"{name} {size}" for name, size in sizes.items())
        msg = f"{settings.devices} devices are no multiple of {shared} ({of}).\nGive --devices N, or another layout."
        raise MigrateError(msg)
    return settings.devices // shared


def train_iters(settings: Settings) -> Worked | None:
    """Return the length in iterations, unless samples or tokens end the training; 0 only evaluates."""
    if skipped := next((name for name in _ONLY_EVALUATE if settings.value(name)), None):
        return Worked(0, (skipped,), "nothing is trained, only evaluated")
    stated = settings.value("train_iters")
    if stated is None or train_samples(settings) is not None:
        return None
    tokens = settings.value("train_tokens")
    idle = () if tokens is None else (("train_tokens", "the iterations end before the tokens do"),)
    return Worked(stated, ("train_iters",), idle=idle)


def train_samples(settings: Settings) -> Worked | None:
    """Return the length in samples: those of --train-tokens, if they come first."""
    if any(settings.value(name) for name in _ONLY_EVALUATE):
        return None
    samples, tokens, length = (settings.value(name) for name in ("train_samples", "train_tokens", "seq_length"))
    if tokens is None or not length:
        return None if samples is None else Worked(samples, ("train_samples",))
    of_tokens = _in_whole_steps(settings, -(-tokens // length))
    limit = samples_without_tokens(settings)
    if limit is not None and limit <= of_tokens:
        if samples is None:
            return None
        return Worked(samples, ("train_samples",), idle=(("train_tokens", "the samples end before the tokens do"),))
    return Worked(of_tokens, ("train_tokens", "seq_length"), f"{tokens} tokens / {length}")


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


def rampup_batch_size(settings: Settings) -> Worked | None:
    """Return [start, increment, samples].

    Raises:
        MigrateError: they are not three whole numbers.
    """
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
    return Worked([start, increment, samples], (name,))


def iterations_to_skip(settings: Settings) -> Worked | None:
    """Return the iterations that are left out, which the program counts from 0."""
    name = "iterations_to_skip"
    given = settings.value(name)
    return Worked([int(number) + 1 for number in given], (name,)) if given else None
