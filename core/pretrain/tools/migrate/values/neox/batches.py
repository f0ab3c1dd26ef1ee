"""Keys of the section `train` that several settings make together.

`calculate_derived` and `calculate_batch_parameters` (megatron/neox_arguments/arguments.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.values.neox.nested import inner, refused, stated, whole
from pretrain.tools.migrate.values.worked import Worked

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings

_BATCH, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_LAYOUT = ("model_parallel_size", "pipe_parallel_size")


def micro_batch_size(settings: Settings) -> Worked | None:
    """Return the samples of a rank: stated, or what the global batch leaves for it.

    Raises:
        MigrateError: the number of devices is needed and unknown, or does not divide the batch.
    """
    if inner(settings, _MICRO) is not None:
        return Worked(whole(settings, _MICRO, 1), (_MICRO,))
    if inner(settings, _BATCH) is None:
        return None
    batch, steps, replicas = whole(settings, _BATCH, 1), whole(settings, _STEPS, 1), _replicas(settings)
    if batch % (steps * replicas):
        why = f"{batch} samples are no multiple of {_of(steps, replicas)}"
        raise refused(settings, _BATCH, why, "Change one of the numbers, or give --devices N")
    return Worked(batch // (steps * replicas), (_BATCH, _STEPS), f"{batch} / {_of(steps, replicas)}")


def global_batch_size(settings: Settings) -> Worked | None:
    """Return the samples of a step: stated, or the micro batches of all replicas.

    Raises:
        MigrateError: the number of devices is needed and unknown, or the three sizes contradict each other.
    """
    if inner(settings, _BATCH) is not None:
        batch = whole(settings, _BATCH, 1)
        _check(settings, batch)
        return Worked(batch, (_BATCH, *stated(settings, _STEPS)))
    if inner(settings, _MICRO) is None:
        return None
    micro, steps, replicas = whole(settings, _MICRO, 1), whole(settings, _STEPS, 1), _replicas(settings)
    return Worked(micro * steps * replicas, (_MICRO, _STEPS), f"{micro} x {_of(steps, replicas)}")


def _check(settings: Settings, batch: int) -> None:
    """Refuse three sizes that contradict each other, as GPT-NeoX does, whose steps are 1 by default."""
    if inner(settings, _MICRO) is None or devices(settings) is None:
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
    if inner(settings, "global_num_gpus") is not None:
        return whole(settings, "global_num_gpus", 1)
    gpus, nodes = inner(settings, "num_gpus"), inner(settings, "num_nodes", -1)
    if isinstance(gpus, int) and isinstance(nodes, int) and gpus > 0 and nodes > 0:
        return gpus * nodes
    return None


def _replicas(settings: Settings) -> int:
    """Return the data-parallel size.

    Raises:
        MigrateError: the number of devices is unknown, or no multiple of those that hold one replica.
    """
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
        sizes = " x ".join(f"{name} {inner(settings, name, 1)}" for name in _LAYOUT)
        msg = f"{number} devices are no multiple of {shared} ({sizes}).\nGive --devices N, or another layout."
        raise MigrateError(msg)
    return number // shared
