"""Settings inside the objects that GPT-NeoX hands to DeepSpeed, by path: "optimizer.params.lr"."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Setting

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings

EXTRA = "deepspeed_extra_args"
"""Object whose keys GPT-NeoX puts beside the others (`get_extra_deepspeed_args`), so that their paths lack it."""

_LARGEST = 10**15
"""Whole numbers that are exact as floating-point numbers too, with which parts of them are worked out."""


def flat(stated: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return settings with those inside objects by their paths, in the place of the objects.

    Keys of deepspeed_extra_args count as if they stood beside the others (`NeoXArgs.get_extra_deepspeed_args`).

    Args:
        stated: by name, as `read_neox` gives them.

    Raises:
        MigrateError: a key stands in deepspeed_extra_args and beside the others.
    """
    found: dict[str, Setting] = {}
    for name, setting in _beside(stated).items():
        if isinstance(setting.value, Mapping) and setting.value:
            found |= flat(_inside(name, setting))
        else:
            found[name] = setting
    return found


def _beside(stated: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return settings with the keys of deepspeed_extra_args under their own names."""
    around = stated.get(EXTRA)
    if around is None or not isinstance(around.value, Mapping) or not around.value:
        return dict(stated)
    extra = {path.removeprefix(f"{EXTRA}."): setting for path, setting in _inside(EXTRA, around).items()}
    for name, setting in extra.items():
        other = stated.get(name)
        if other is not None and other.value is not None:
            msg = f"{setting.place}: {setting.written} and {other.place}: {other.written} are one setting"
            msg += " in two places.\nRemove one of them."
            raise MigrateError(msg)
    others = {name: setting for name, setting in stated.items() if name != EXTRA}
    return others | {name: replace(setting, name=name) for name, setting in extra.items()}


def _inside(name: str, around: Setting) -> dict[str, Setting]:
    places = getattr(around.value, "places", {})
    return {
        f"{name}.{key}": Setting(f"{name}.{key}", value, f"{around.written}.{key}", places.get(key, around.place))
        for key, value in around.value.items()
    }


def inner(settings: Settings, path: str, otherwise: Any = None) -> Any:
    """Return the value of a setting.

    Args:
        settings: those of a training, flat.
        path: a name, or the path of a key of an object.
        otherwise: for one that is null or absent.
    """
    return settings.value(path, otherwise)


def stated(settings: Settings, *paths: str) -> tuple[str, ...]:
    """Return those of the paths that the source gives a value."""
    return tuple(path for path in paths if path in settings.stated)


def whole(settings: Settings, path: str, otherwise: int) -> int:
    """Return a setting that has to be a whole number.

    Raises:
        MigrateError: it is something else, such as "auto", or out of range.
    """
    value = inner(settings, path, otherwise)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise refused(settings, path, f"{value!r} is not a whole number", "Give the number that the training has")
    if abs(value) > _LARGEST:
        why = f"a number of {len(str(abs(value)))} digits is out of range"
        raise refused(settings, path, why, "Give the number that the training has")
    return value


def number(settings: Settings, path: str, otherwise: float) -> float:
    """Return a setting that has to be a number.

    Raises:
        MigrateError: it is something else.
    """
    value = inner(settings, path, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise refused(settings, path, f"{value!r} is not a number", "Give the number that the training has")
    return value


def refused(settings: Settings, path: str, why: str, todo: str) -> MigrateError:
    """Return an error that names the line of a setting."""
    setting = settings.stated.get(path)
    place = f"{setting.place}: " if setting is not None and setting.place is not None else ""
    return MigrateError(f"{place}{path}: {why}.\n{todo}.")
