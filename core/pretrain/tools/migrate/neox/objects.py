"""Objects that GPT-NeoX hands to DeepSpeed, key by key (NeoXArgsDeepspeedConfig): "zero_optimization.stage"."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.recipe.deepspeed.key_tables import BLOCKS, INSTEAD, SAME, SETTLED, SWITCHED
from pretrain.tools.migrate.meaning import Mapped, NotNeeded, NotSupported, meanings_in
from pretrain.tools.migrate.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Settings

_REMOVED = {
    "amp": "precision.dtype sets the dtype of everything",
    "compression_training": "weights are not compressed",
    "curriculum_learning": "every sequence has model.seq_length tokens",
    "elasticity": "the number of devices may change at a resume, the batch does not",
    "sparse_attention": "attention is not sparse",
}
_CHANGES = {
    "prescale_gradients": "gradients are divided after their sum",
    "gradient_predivide_factor": "gradients are divided after their sum",
    "dump_state": "the recipe and environment.json of the run directory are what is written",
    "fp16.fp16_master_weights_and_grads": "main weights and gradients are fp32",
    "optimizer.params.bias_correction": "Adam's moments are corrected for their start",
    "optimizer.params.amsgrad": "Adam is not AMSGrad",
}
_BY_OBJECT = {
    name: f"a recipe has no equivalent of {name}{f': {instead}' if instead else ''}"
    for name, instead in {**SWITCHED, **BLOCKS, **_REMOVED}.items()
    if name not in {"scheduler", "sequence_parallel_size", "compile", "timers"}
}
_STAGES = "at stages 2 and 3, or with offload; at stages 0 and 1 megatron-core's engine has its own"

OTHER_MODEL = frozenset(("progressive_layer_drop", "sparse_attention"))
"""Objects with which the model computes something else."""


def _objects() -> Iterator[tuple[str, Meaning]]:
    """Yield what DeepSpeed's tables say of the keys, and then what is about GPT-NeoX alone and wins."""
    for path, value in SETTLED.items():
        if path != "wall_clock_breakdown" and not path.startswith("activation_checkpointing."):
            change = _CHANGES.get(path) or INSTEAD.get(path) or f"it is always {json.dumps(value)} here"
            yield path, NotSupported(change, (value,))
    for path, key in SAME.items():
        if path.startswith("zero_optimization."):
            yield path, Mapped(key, how=_STAGES)
    for name, change in _BY_OBJECT.items():
        is_other_model = name in OTHER_MODEL
        yield f"{name}.enabled", NotSupported(change, (False,), is_other_model)
        of_switch = NotNeeded("no effect", f"it belongs to {name}.enabled")
        yield name, of_switch if name in SWITCHED else NotSupported(change, (None, {}), is_other_model)
    yield from meanings_in("neox_object")


OBJECTS: Mapping[str, Meaning] = dict(_objects())

EXTRA = "deepspeed_extra_args"
"""Object whose keys GPT-NeoX puts beside the others (`get_extra_deepspeed_args`), so that their paths lack it."""

_LARGEST = 10**15
"""Whole numbers that are exact as floating-point numbers too, with which parts of them are worked out."""


def flat(stated: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return settings with those inside objects by their paths, in the place of the objects."""
    found: dict[str, Setting] = {}
    for name, setting in _beside(stated).items():
        if isinstance(setting.value, Mapping) and setting.value:
            found |= flat(_inside(name, setting))
        else:
            found[name] = setting
    return found


def _beside(stated: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return settings with the keys of deepspeed_extra_args beside the others."""
    around = stated.get(EXTRA)
    if around is None or not isinstance(around.value, Mapping) or not around.value:
        return dict(stated)
    extra = {path.removeprefix(f"{EXTRA}."): setting for path, setting in _inside(EXTRA, around).items()}
    for name, setting in extra.items():
        other = stated.get(name)
        if other is not None and other.value is not None:
            both = f"{setting.place}: {setting.written} and {other.place}: {other.written}"
            msg = f"{both} are the same setting.\nRemove one of them."
            raise MigrateError(msg)
    others = {name: setting for name, setting in stated.items() if name != EXTRA}
    return others | {name: replace(setting, name=name) for name, setting in extra.items()}


def _inside(name: str, around: Setting) -> dict[str, Setting]:
    places = getattr(around.value, "places", {})
    return {
        f"{name}.{key}": Setting(f"{name}.{key}", value, f"{around.written}.{key}", places.get(key, around.place))
        for key, value in around.value.items()
    }


def stated(settings: Settings, *paths: str) -> tuple[str, ...]:
    """Return those of the paths that the source gives a value."""
    return tuple(path for path in paths if path in settings.stated)


def whole(settings: Settings, path: str, otherwise: int) -> int:
    """Return a setting that has to be a whole number."""
    value = settings.value(path, otherwise)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise refused(settings, path, f"{value!r} is not a whole number", "Give a whole number")
    if abs(value) > _LARGEST:
        why = f"a number of {len(str(abs(value)))} digits is out of range"
        raise refused(settings, path, why, "Give a smaller number")
    return value


def number(settings: Settings, path: str, otherwise: float) -> float:
    """Return a setting that has to be a number."""
    value = settings.value(path, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise refused(settings, path, f"{value!r} is not a number", "Give a number")
    return value


def refused(settings: Settings, path: str, why: str, todo: str) -> MigrateError:
    """Return an error that names the line of a setting."""
    setting = settings.stated.get(path)
    place = f"{setting.place}: " if setting is not None and setting.place is not None else ""
    return MigrateError(f"{place}{path}: {why}.\n{todo}.")
