"""DeepSpeed as the engine of a training: if it is on, and the state that its file splits and offloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.recipe.deepspeed.translate import translate
from pretrain.recipe.section import shown
from pretrain.tools.migrate.setting import Place
from pretrain.tools.migrate.values.megatron.layout_text import pipeline_stages

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pretrain.recipe.deepspeed.json_file import JsonFile
    from pretrain.recipe.deepspeed.translation import Given
    from pretrain.tools.migrate.setting import Settings

WITHOUT = "without --deepspeed the program does not read it (--as-meant takes it as if --deepspeed were given)"
"""Reason why a file, and the flags that belong to it, have no effect."""

_STAGE = "engine.zero.stage"
_STAGES = (0, 1, 2, 3)
_OFFLOADED = ("engine.zero.offload_optimizer.device", "engine.zero.offload_param.device")
_DEVICES = ("none", "cpu", "nvme")


def is_on(settings: Settings) -> bool:
    """Say whether DeepSpeed trains: with --deepspeed alone, unless the file is to count as it was meant."""
    switched = settings.value("deepspeed") or settings.value("deepscale")
    return bool(switched) or (settings.as_meant and settings.deepspeed is not None)


def stage(settings: Settings) -> int:
    """Return the stage of ZeRO in the file; 0 without one.

    Raises:
        MigrateError: there is no such stage.
    """
    return next((int(value) for value in _stated(settings, (_STAGE,), _STAGES)), 0)


def is_offloaded(settings: Settings) -> bool:
    """Say whether the file puts state elsewhere than on the device.

    Raises:
        MigrateError: there is no such place.
    """
    return any(value != "none" for value in _stated(settings, _OFFLOADED, _DEVICES))


def uses_deepspeed(settings: Settings) -> bool:
    """Say whether the recipe's engine is DeepSpeed: ZeRO without pipeline stages, which belong to megatron's.

    Raises:
        MigrateError: the file asks for what DeepSpeed refuses beside pipeline stages.
    """
    if not is_on(settings):
        return False
    stages = pipeline_stages(settings)
    if stages > 1 and (stage(settings) > 1 or is_offloaded(settings)):
        file = settings.deepspeed
        place = "" if file is None else f"{file.place('zero_optimization')}: "
        msg = (
            f"{place}ZeRO-2, ZeRO-3 and offload do not go with {stages} pipeline stages, in DeepSpeed neither.\n"
            "Change one of the two."
        )
        raise MigrateError(msg)
    return stages == 1 and (stage(settings) > 0 or is_offloaded(settings))


def place_in(file: JsonFile, json_path: str) -> Place:
    """Return the line of a key of a DeepSpeed file."""
    source, _, line = file.places.get(json_path, file.name).rpartition(":")
    return Place(source, int(line)) if line.isdigit() else Place(file.name)


def _stated(settings: Settings, keys: Collection[str], allowed: Collection[Any]) -> Iterator[Any]:
    """Yield the values that the file gives some keys of the recipe.

    Raises:
        MigrateError: one of them is not allowed.
    """
    file = settings.deepspeed
    for given in [] if file is None else translate(file).given:
        if given.path in keys:
            if isinstance(given.value, bool) or not isinstance(given.value, int | str) or given.value not in allowed:
                raise MigrateError(_refused(file, given, allowed))
            yield given.value


def _refused(file: JsonFile | None, given: Given, allowed: Collection[Any]) -> str:
    place = "" if file is None else f"{file.place(given.json_path)}: "
    return (
        f"{place}{shown(given.value)} is not one of {', '.join(map(str, allowed))}.\n"
        "DeepSpeed would not start with it: correct it."
    )
