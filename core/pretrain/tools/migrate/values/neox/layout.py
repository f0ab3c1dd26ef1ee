"""Keys of the sections `parallel` and `recompute` that several settings make together.

`calculate_derived` (megatron/neox_arguments/arguments.py) and GPT2ModelPipe (megatron/model/gpt2_model.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pretrain.tools.migrate.values.neox import zero
from pretrain.tools.migrate.values.neox.nested import inner, stated, whole
from pretrain.tools.migrate.values.worked import Worked

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings

_TENSOR, _PIPE, _LAYERS = "model_parallel_size", "pipe_parallel_size", "num_layers"
_REDUCED, _GATHERED = "zero_optimization.reduce_bucket_size", "zero_optimization.allgather_bucket_size"
_OVERLAP, _SPLIT = "zero_optimization.overlap_comm", "partition_activations"


def tensor_model_parallel_size(settings: Settings) -> Worked:
    """Return the ranks of a layer."""
    return Worked(max(1, whole(settings, _TENSOR, 1)), (_TENSOR,))


def pipeline_model_parallel_size(settings: Settings) -> Worked:
    """Return the stages; 0 is a model without a pipeline."""
    return Worked(max(1, whole(settings, _PIPE, 0)), (_PIPE,))


def pipeline_layers(settings: Settings) -> Worked | None:
    """Return the layers of every stage where they cannot be as many: stages in the middle have one more."""
    stages, layers = pipeline_model_parallel_size(settings).value, whole(settings, _LAYERS, 0)
    if layers < stages or layers % stages == 0:
        return None
    few, more = divmod(layers, stages)
    first = (stages - more) // 2
    numbers = [few + (first <= stage < first + more) for stage in range(stages)]
    return Worked(numbers, (_LAYERS, _PIPE), f"{layers} layers on {stages} stages; DeepSpeed may cut them elsewhere")


def sequence_parallel(settings: Settings) -> Worked | None:
    """Return whether norms and dropout are split over the tensor-parallel ranks."""
    given = settings.value("sequence_parallel")
    if given and tensor_model_parallel_size(settings).value == 1:
        return Worked(None, (), idle=(("sequence_parallel", "model_parallel_size is 1"),))
    return None if given is None else Worked(given, ("sequence_parallel",))


def use_distributed_optimizer(settings: Settings) -> Worked | None:
    """Return whether the optimizer's state is split: ZeRO 1, which needs no DeepSpeed here."""
    return None if zero.by_deepspeed(settings) else Worked(zero.stage(settings) == 1, ("zero_optimization.stage",))


def overlap_grad_reduce(settings: Settings) -> Worked | None:
    """Return whether gradients are reduced during the backward pass."""
    if zero.by_deepspeed(settings):
        return None
    given = inner(settings, _OVERLAP)
    if zero.stage(settings) == 0:
        return Worked(None, (), idle=((_OVERLAP, "DeepSpeed reads it with ZeRO alone, and the stage is 0"),))
    return Worked(bool(given), stated(settings, _OVERLAP))


def ddp_bucket_size(settings: Settings) -> Worked | None:
    """Return the gradients that are reduced together."""
    names = stated(settings, _REDUCED, _GATHERED)
    if zero.by_deepspeed(settings) or not names:
        return None
    overlap = overlap_grad_reduce(settings)
    if overlap is None or not overlap.value:
        why = "without overlap gradients are reduced at once, and weights gathered at once"
        return Worked(None, (), idle=tuple((name, why) for name in names))
    reduced = inner(settings, _REDUCED)
    used = tuple(name for name in names if inner(settings, name) == reduced)
    idle = ((_GATHERED, "weights are gathered in the buckets of parallel.ddp_bucket_size"),)
    value = None if reduced is None else whole(settings, _REDUCED, 1)
    return Worked(value, used if value else (), idle=idle if _GATHERED in names and _GATHERED not in used else ())


def granularity(settings: Settings) -> Worked:
    """Return what is computed again: whole layers, or nothing."""
    return Worked("full" if settings.value("checkpoint_activations") else "none", ("checkpoint_activations",))


def method(settings: Settings) -> Worked | None:
    """Return which layers keep their input: the first of every group."""
    return Worked("uniform", ("checkpoint_activations",)) if granularity(settings).value == "full" else None


def num_layers(settings: Settings) -> Worked | None:
    """Return the layers of a group, which have to divide those of a stage here."""
    name = "checkpoint_num_layers"
    if granularity(settings).value != "full":
        return Worked(None, (), idle=((name, "checkpoint_activations is false"),))
    given, stages = whole(settings, name, 1), pipeline_layers(settings)
    per_stage = whole(settings, _LAYERS, 0) // pipeline_model_parallel_size(settings).value
    fits = math.gcd(given, *(stages.value if stages is not None else [per_stage]))
    if fits == given:
        return Worked(fits, (name,))
    change = f"{given} does not divide the layers of every stage; groups have {fits}, with which results are the same"
    return Worked(fits, (), lost=((name, f"{change}, but not memory"),))


def distribute_saved_activations(settings: Settings) -> Worked | None:
    """Return whether kept activations are split over the tensor-parallel ranks."""
    if not settings.value(_SPLIT):
        return None
    if granularity(settings).value != "full":
        return Worked(None, (), idle=((_SPLIT, "checkpoint_activations is false"),))
    if tensor_model_parallel_size(settings).value == 1:
        return Worked(None, (), idle=((_SPLIT, "one rank has nothing to split"),))
    if settings.value("sequence_parallel"):
        return Worked(None, (), idle=((_SPLIT, "sequence_parallel has split them already"),))
    return Worked(True, (_SPLIT,))
