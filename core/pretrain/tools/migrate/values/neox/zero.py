"""Keys of the section `engine`: ZeRO 2 and 3, and offload, which DeepSpeed does here too.

Stages 0 and 1 are megatron-core's: parallel.use_distributed_optimizer (see layout.py).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pretrain.recipe.deepspeed.key_tables import SAME, WHOLE
from pretrain.tools.migrate.values.neox.nested import inner, refused, stated, whole
from pretrain.tools.migrate.values.worked import Worked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Settings
    from pretrain.tools.migrate.values.worked import Function

_ZERO = "zero_optimization"
_OPTIMIZER, _PARAM = f"{_ZERO}.offload_optimizer.device", f"{_ZERO}.offload_param.device"
_OLD = {_OPTIMIZER: (f"{_ZERO}.cpu_offload",), _PARAM: (f"{_ZERO}.cpu_offload_param", f"{_ZERO}.cpu_offload_params")}
_PIN = f"{_ZERO}.cpu_offload_use_pin_memory"
_SEEN_TO = {f"{_ZERO}.{key}" for key in ("stage", "overlap_comm", "reduce_bucket_size", "allgather_bucket_size")}
"""Keys that layout.py makes use of, or says why not, where megatron-core steps the optimizer."""
_CPU_ADAM = "engine.zero.offload_optimizer.cpu_adam"

PATHS: dict[str, tuple[str, ...]] = {}
"""Paths of GPT-NeoX by key of the recipe: DeepSpeed takes some keys with and without stage3_."""
for _path, _key in SAME.items():
    if _path.startswith(f"{_ZERO}."):
        PATHS[_key] = (*PATHS.get(_key, ()), _path)


def stage(settings: Settings) -> int:
    """Return ZeRO's stage; 0 without zero_optimization.

    Raises:
        MigrateError: it is none of 0 to 3.
    """
    path = f"{_ZERO}.stage"
    found = whole(settings, path, 0)
    if not 0 <= found <= 3:
        raise refused(settings, path, f"{found} is none of 0 to 3", "Give the stage that the training has")
    return found


def by_deepspeed(settings: Settings) -> bool:
    """Return whether DeepSpeed has to step the optimizer: ZeRO 2 or 3, or ZeRO 1 with offload."""
    return stage(settings) > 1 or (stage(settings) == 1 and _device(settings, _OPTIMIZER) is not None)


def engine_name(settings: Settings) -> Worked:
    """Return the engine."""
    names = (f"{_ZERO}.stage", *stated(settings, _OPTIMIZER, *_OLD[_OPTIMIZER]))
    return Worked("deepspeed" if by_deepspeed(settings) else "megatron", names)


def _device(settings: Settings, path: str) -> str | None:
    """Return where state is kept off the device; None for nowhere."""
    given = inner(settings, path)
    if given is None:
        given = "cpu" if any(inner(settings, old) for old in _OLD[path]) else "none"
    return None if given == "none" else str(given)


def _device_of(settings: Settings, path: str) -> Worked | None:
    """Return the device of offload, by its present or its older key."""
    names = stated(settings, path, *_OLD[path])
    device = _device(settings, path)
    if not by_deepspeed(settings):
        why = "without ZeRO nothing is offloaded" if stage(settings) == 0 else "weights are offloaded at stage 3 alone"
        return Worked(None, (), idle=tuple((name, why) for name in names)) if device else None
    return Worked(device, names) if device is not None else None


def _pin_memory(settings: Settings, path: str) -> Worked | None:
    """Return whether host memory is page-locked."""
    section = path.rpartition(".")[0]
    found = _plain(settings, (path,))
    if found is not None or _device(settings, f"{section}.device") is None or inner(settings, _PIN) is None:
        return found
    return Worked(inner(settings, _PIN), (_PIN,)) if by_deepspeed(settings) else None


def _cpu_adam(settings: Settings) -> Worked | None:
    """Return the Adam of the host that cpu_adam names; GPT-NeoX takes the same for cpu_torch_adam."""
    given = str(inner(settings, "optimizer.type", "")).lower()
    if given not in {"cpu_adam", "cpu_torch_adam"} or _device(settings, _OPTIMIZER) is None:
        return None
    return Worked("deepspeed", ("optimizer.type",)) if by_deepspeed(settings) else None


def _plain(settings: Settings, paths: tuple[str, ...]) -> Worked | None:
    """Return a value that DeepSpeed reads under the same name."""
    path = next((path for path in paths if inner(settings, path) is not None), None)
    if path is None:
        return None
    if not by_deepspeed(settings):
        if path in _SEEN_TO:
            return None
        return Worked(None, (), idle=((path, "megatron-core's optimizer has buffers of its own"),))
    value: Any = inner(settings, path)
    return Worked(whole(settings, path, 0) if path in WHOLE else value, (path,))


FUNCTIONS: Mapping[str, Function] = {
    **{key: partial(_plain, paths=paths) for key, paths in PATHS.items()},
    "engine.name": engine_name,
    "engine.zero.offload_optimizer.device": partial(_device_of, path=_OPTIMIZER),
    "engine.zero.offload_param.device": partial(_device_of, path=_PARAM),
    "engine.zero.offload_optimizer.pin_memory": partial(_pin_memory, path=f"{_ZERO}.offload_optimizer.pin_memory"),
    "engine.zero.offload_param.pin_memory": partial(_pin_memory, path=f"{_ZERO}.offload_param.pin_memory"),
    _CPU_ADAM: _cpu_adam,
}
"""By key of the recipe."""
