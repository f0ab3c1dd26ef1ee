"""GPT-NeoX's settings of parallelism, recomputation and launching (NeoXArgsParallelism, NeoXArgsDeepspeedRunner)."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from pretrain.recipe.deepspeed.key_tables import SAME, WHOLE
from pretrain.tools.migrate.neox.objects import refused, stated, whole
from pretrain.tools.migrate.setting import Derived, in_place, taken, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Function, Settings

_TENSOR, _PIPE, _LAYERS = "model_parallel_size", "pipe_parallel_size", "num_layers"
_REDUCED, _GATHERED = "zero_optimization.reduce_bucket_size", "zero_optimization.allgather_bucket_size"
_OVERLAP, _SPLIT = "zero_optimization.overlap_comm", "partition_activations"


def _tensor_model_parallel_size(settings: Settings) -> Derived:
    return Derived(max(1, whole(settings, _TENSOR, 1)), (_TENSOR,))


def pipeline_model_parallel_size(settings: Settings) -> Derived:
    """Return the stages; 0 is a model without a pipeline."""
    return Derived(max(1, whole(settings, _PIPE, 0)), (_PIPE,))


def pipeline_layers(settings: Settings) -> Derived | None:
    """Return the layers of every stage where they cannot be as many: stages in the middle have one more."""
    stages, layers = pipeline_model_parallel_size(settings).value, whole(settings, _LAYERS, 0)
    if layers < stages or layers % stages == 0:
        return None
    few, more = divmod(layers, stages)
    first = (stages - more) // 2
    numbers = [few + (first <= stage < first + more) for stage in range(stages)]
    return Derived(numbers, (_LAYERS, _PIPE), f"{layers} layers on {stages} stages; DeepSpeed may cut them elsewhere")


def sequence_parallel(settings: Settings) -> Derived | None:
    """Return whether norms and dropout are split over the tensor-parallel ranks."""
    if settings.value("sequence_parallel") and _tensor_model_parallel_size(settings).value == 1:
        return unused("sequence_parallel", "model_parallel_size is 1")
    return taken(settings, "sequence_parallel")


def use_distributed_optimizer(settings: Settings) -> Derived | None:
    """Return whether the optimizer's state is split: ZeRO 1, which needs no DeepSpeed here."""
    return None if by_deepspeed(settings) else Derived(stage(settings) == 1, ("zero_optimization.stage",))


def _overlap_grad_reduce(settings: Settings) -> Derived | None:
    if by_deepspeed(settings):
        return None
    given = settings.value(_OVERLAP)
    if stage(settings) == 0:
        return unused(_OVERLAP, "DeepSpeed reads it with ZeRO alone, and the stage is 0")
    return Derived(bool(given), stated(settings, _OVERLAP))


def _ddp_bucket_size(settings: Settings) -> Derived | None:
    names = stated(settings, _REDUCED, _GATHERED)
    if by_deepspeed(settings) or not names:
        return None
    overlap = _overlap_grad_reduce(settings)
    if overlap is None or not overlap.value:
        return unused(names, "without overlap gradients are reduced at once, and weights gathered at once")
    reduced = settings.value(_REDUCED)
    used = tuple(name for name in names if settings.value(name) == reduced)
    idle = ((_GATHERED, "weights are gathered in the buckets of parallel.ddp_bucket_size"),)
    value = None if reduced is None else whole(settings, _REDUCED, 1)
    return Derived(value, used if value else (), idle=idle if _GATHERED in names and _GATHERED not in used else ())


def num_layers(settings: Settings) -> Derived | None:
    """Return the layers of a group, which have to divide those of a stage here."""
    name = "checkpoint_num_layers"
    if not settings.value("checkpoint_activations"):
        return unused(name, "checkpoint_activations is false")
    given, stages = whole(settings, name, 1), pipeline_layers(settings)
    per_stage = whole(settings, _LAYERS, 0) // pipeline_model_parallel_size(settings).value
    fits = math.gcd(given, *(stages.value if stages is not None else [per_stage]))
    if fits == given:
        return Derived(fits, (name,))
    change = f"{given} does not divide the layers of every stage; groups have {fits}, with which results are the same"
    return in_place(fits, name, f"{change}, but not memory")


def distribute_saved_activations(settings: Settings) -> Derived | None:
    """Return whether kept activations are split over the tensor-parallel ranks."""
    if not settings.value(_SPLIT):
        return None
    if not settings.value("checkpoint_activations"):
        return unused(_SPLIT, "checkpoint_activations is false")
    if _tensor_model_parallel_size(settings).value == 1:
        return unused(_SPLIT, "one rank has nothing to split")
    if settings.value("sequence_parallel"):
        return unused(_SPLIT, "sequence_parallel has split them already")
    return Derived(True, (_SPLIT,))


_ZERO = "zero_optimization"
_OPTIMIZER, _PARAM = f"{_ZERO}.offload_optimizer.device", f"{_ZERO}.offload_param.device"
_OLD = {_OPTIMIZER: (f"{_ZERO}.cpu_offload",), _PARAM: (f"{_ZERO}.cpu_offload_param", f"{_ZERO}.cpu_offload_params")}
_PIN = f"{_ZERO}.cpu_offload_use_pin_memory"
_SEEN_TO = {f"{_ZERO}.{key}" for key in ("stage", "overlap_comm", "reduce_bucket_size", "allgather_bucket_size")}
"""Keys that have functions of their own here, where megatron-core steps the optimizer."""

PATHS: dict[str, tuple[str, ...]] = {}
"""Paths of GPT-NeoX by key of the recipe: DeepSpeed takes some keys with and without stage3_."""
for _path, _key in SAME.items():
    if _path.startswith(f"{_ZERO}."):
        PATHS[_key] = (*PATHS.get(_key, ()), _path)


def stage(settings: Settings) -> int:
    """Return ZeRO's stage; 0 without zero_optimization."""
    path = f"{_ZERO}.stage"
    found = whole(settings, path, 0)
    if not 0 <= found <= 3:
        raise refused(settings, path, f"{found} is not one of 0 to 3", "Give the stage of the training")
    return found


def by_deepspeed(settings: Settings) -> bool:
    """Return whether DeepSpeed has to step the optimizer: ZeRO 2 or 3, or ZeRO 1 with offload."""
    return stage(settings) > 1 or (stage(settings) == 1 and _device(settings, _OPTIMIZER) is not None)


def _engine_name(settings: Settings) -> Derived:
    names = (f"{_ZERO}.stage", *stated(settings, _OPTIMIZER, *_OLD[_OPTIMIZER]))
    return Derived("deepspeed" if by_deepspeed(settings) else "megatron", names)


def _device(settings: Settings, path: str) -> str | None:
    """Return where state is kept off the device; None for nowhere."""
    given = settings.value(path)
    if given is None:
        given = "cpu" if any(settings.value(old) for old in _OLD[path]) else "none"
    return None if given == "none" else str(given)


def _device_of(settings: Settings, path: str) -> Derived | None:
    names = stated(settings, path, *_OLD[path])
    device = _device(settings, path)
    if not by_deepspeed(settings):
        why = "without ZeRO nothing is offloaded" if stage(settings) == 0 else "weights are offloaded at stage 3 alone"
        return unused(names, why) if device else None
    return Derived(device, names) if device is not None else None


def _pin_memory(settings: Settings, path: str) -> Derived | None:
    section = path.rpartition(".")[0]
    found = _plain(settings, (path,))
    if found is not None or _device(settings, f"{section}.device") is None or settings.value(_PIN) is None:
        return found
    return Derived(settings.value(_PIN), (_PIN,)) if by_deepspeed(settings) else None


def _cpu_adam(settings: Settings) -> Derived | None:
    """Return the Adam of the host that cpu_adam names; GPT-NeoX takes the same for cpu_torch_adam."""
    given = str(settings.value("optimizer.type", "")).lower()
    if given not in {"cpu_adam", "cpu_torch_adam"} or _device(settings, _OPTIMIZER) is None:
        return None
    return Derived("deepspeed", ("optimizer.type",)) if by_deepspeed(settings) else None


def _plain(settings: Settings, paths: tuple[str, ...]) -> Derived | None:
    """Return a value that DeepSpeed reads under the same name."""
    path = next((path for path in paths if settings.value(path) is not None), None)
    if path is None:
        return None
    if not by_deepspeed(settings):
        if path in _SEEN_TO:
            return None
        return unused(path, "megatron-core's optimizer has buffers of its own")
    value: Any = settings.value(path)
    return Derived(whole(settings, path, 0) if path in WHOLE else value, (path,))


FUNCTIONS: Mapping[str, Function] = {
    "parallel.tensor_model_parallel_size": _tensor_model_parallel_size,
    "parallel.pipeline_model_parallel_size": pipeline_model_parallel_size,
    "parallel.pipeline_layers": pipeline_layers,
    "parallel.sequence_parallel": sequence_parallel,
    "parallel.use_distributed_optimizer": use_distributed_optimizer,
    "parallel.overlap_grad_reduce": _overlap_grad_reduce,
    "parallel.ddp_bucket_size": _ddp_bucket_size,
    "recompute.granularity": lambda settings: Derived(
        "full" if settings.value("checkpoint_activations") else "none", ("checkpoint_activations",)
    ),
    "recompute.method": lambda settings: (
        Derived("uniform", ("checkpoint_activations",)) if settings.value("checkpoint_activations") else None
    ),
    "recompute.num_layers": num_layers,
    "recompute.distribute_saved_activations": distribute_saved_activations,
    **{key: partial(_plain, paths=paths) for key, paths in PATHS.items()},
    "engine.name": _engine_name,
    "engine.zero.offload_optimizer.device": partial(_device_of, path=_OPTIMIZER),
    "engine.zero.offload_param.device": partial(_device_of, path=_PARAM),
    "engine.zero.offload_optimizer.pin_memory": partial(_pin_memory, path=f"{_ZERO}.offload_optimizer.pin_memory"),
    "engine.zero.offload_param.pin_memory": partial(_pin_memory, path=f"{_ZERO}.offload_param.pin_memory"),
    "engine.zero.offload_optimizer.cpu_adam": _cpu_adam,
}
