"""Translate the keys of a DeepSpeed file, and merge them into the document of the recipe that names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import did_you_mean
from pretrain.recipe.deepspeed import key_functions
from pretrain.recipe.deepspeed.json_file import AUTO, read_inline, read_json, written
from pretrain.recipe.deepspeed.key_tables import (
    BLOCKS,
    REFUSED,
    REMOVED,
    SAME,
    SETTLED,
    SWITCHED,
    UNREAD,
    WHOLE,
    without_equivalent,
)
from pretrain.recipe.deepspeed.translation import Translation, no_translation
from pretrain.recipe.section import as_number, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.recipe.deepspeed.json_file import JsonFile
    from pretrain.recipe.deepspeed.translation import Given
    from pretrain.recipe.document import Document

FUNCTIONS: dict[str, Callable[[Translation, str, Any], None]] = {
    "gradient_accumulation_steps": key_functions.accumulation_steps,
    "steps_per_print": key_functions.steps_per_print,
    "fp16.enabled": key_functions.enabled,
    "fp16.loss_scale": key_functions.loss_scale,
    "fp16.initial_scale_power": key_functions.initial_scale_power,
    "bf16.enabled": key_functions.enabled,
    "bfloat16.enabled": key_functions.enabled,
    "data_types.grad_accum_dtype": key_functions.sum_of_gradients,
    "data_types.param_dtype": key_functions.dtype_of_weights,
    "communication_data_type": key_functions.sum_of_gradients,
    "optimizer.type": key_functions.name,
    "optimizer.params.betas": key_functions.betas,
    "optimizer.params.adam_w_mode": key_functions.adam_w_mode,
    "optimizer.params.torch_adam": key_functions.torch_adam,
    "zero_optimization": key_functions.as_switch,
    "zero_optimization.cpu_offload": key_functions.cpu_offload,
    "zero_optimization.cpu_offload_param": key_functions.cpu_offload,
    "zero_optimization.cpu_offload_params": key_functions.cpu_offload,
    "zero_optimization.cpu_offload_use_pin_memory": key_functions.pin_memory,
}
"""Keys whose translation needs a function."""

KEYS = {*SAME, *FUNCTIONS, *SETTLED, *REFUSED, *UNREAD}
_OBJECTS = (*SWITCHED, *BLOCKS, *REMOVED)


def translate(file: JsonFile) -> Translation:
    """Translate a DeepSpeed file into keys of a recipe."""
    translation = Translation(file)
    without_type = key_functions.params_without_a_type(translation)
    done = {"optimizer.params"} if without_type else set[str]()
    for path, value in file.values.items():
        name = _object(path)
        if name is None:
            if not (without_type and path.startswith("optimizer.params.")):
                _key(translation, path, value)
        elif name not in done:
            done.add(name)
            _refuse_object(translation, name)
    key_functions.initial_scale_of_deepspeed(translation)
    return translation


def _object(path: str) -> str | None:
    """Return the object around this key that is accepted or refused as a whole."""
    return next((name for name in _OBJECTS if f"{path}.".startswith(f"{name}.")), None)


def _refuse_object(translation: Translation, name: str) -> None:
    values = translation.file.values
    if name in REMOVED:
        translation.remark(name, "removed", "DeepSpeed has removed this.")
    elif values.get(name, name) in (None, AUTO, {}):
        translation.remark(name, "not given", written(values[name]))
    elif name in SWITCHED and name not in values and values.get(f"{name}.enabled") in (None, AUTO, False):
        translation.settle(f"{name}.enabled", value=False)
    else:
        translation.remark(name, "absent", without_equivalent(name))


def _key(translation: Translation, path: str, value: Any) -> None:
    """Translate one key; null and "auto" count as not given, but do not hide an unknown key."""
    inner = any(key.startswith(f"{path}.") for key in KEYS)
    if path not in KEYS and not inner:
        translation.refuse(path, f"unknown key.{did_you_mean(path, (*KEYS, *_OBJECTS))}")
    elif value is None or value == AUTO or (inner and value == {}):
        translation.remark(path, "not given", written(value))
    elif path in SAME:
        _same(translation, path, value)
    elif path in FUNCTIONS:
        FUNCTIONS[path](translation, path, value)
    elif path in UNREAD:
        if translation.is_switch(path, value):
            translation.notice(path, "left out: nothing in DeepSpeed 0.19 reads it, at any stage.")
    elif inner:
        translation.refuse(path, f"{shown(value)} is not an object with keys.")
    elif path in SETTLED and value == SETTLED[path] and isinstance(value, bool) == isinstance(SETTLED[path], bool):
        translation.settle(path, value)
    else:
        translation.remark(path, "absent", f"{written(value)}: {without_equivalent(path)}")


def _same(translation: Translation, path: str, value: Any) -> None:
    if path in WHOLE and isinstance(value, float) and value.is_integer():
        value = int(value)
        translation.remark(path, "rounded", str(value))
    translation.give(path, SAME[path], value)


_CONFIG = "engine.deepspeed_config"


def merge_deepspeed(document: Document) -> Translation:
    """Replace a DeepSpeed file's name, or its content, in the document by the keys that it is translated to.

    Without engine.name: deepspeed the name stays where it is, as a key without effect.
    """
    named = document.value(_CONFIG)
    if not isinstance(named, str | dict) or not named or document.value("engine.name") != "deepspeed":
        return no_translation()
    keys = tuple(_CONFIG.split("."))
    if isinstance(named, str):
        file = read_json(named, f"{document.place(keys)}: {_CONFIG}")
    else:
        file = read_inline(named, document, keys)
    translation = translate(file)
    document.remove(_CONFIG)
    for given in sorted(translation.given, key=_rank):
        _merge(document, translation, given)
    translation.merged = {
        given.path
        for given in translation.given
        if document.places.get(tuple(given.path.split("."))) == file.place(given.json_path)
    }
    return translation


def _rank(given: Given) -> int:
    """Return the order of merging: values first, since exclusions and defaults depend on them."""
    if given.kind == "by default":
        return 2
    return 1 if given.kind == "is not" or given.value is None else 0


def _merge(document: Document, translation: Translation, given: Given) -> None:
    present = document.value(given.path)
    place = translation.file.place(given.json_path)
    if given.kind == "by default":
        if all(document.value(path) is None for path in (given.path, *given.unless)):
            document.give(given.path, given.value, place)
            text = f"also sets {given.path}: {written(given.value)}, DeepSpeed's default."
            translation.remark(given.json_path, "by default", text)
    elif given.kind == "is not" or given.value is None:
        if present is not None and (given.value is None or _is_same(present, given.value)):
            _contradict(document, translation, given)
    elif present is None:
        document.give(given.path, given.value, place)
    elif not _is_same(present, given.value):
        _contradict(document, translation, given)


def _contradict(document: Document, translation: Translation, given: Given) -> None:
    key = given.path if given.value is None else f"{given.path}: {written(given.value)}"
    means = key if given.kind == "is" and given.value is not None else f"no {key}"
    raw, present = written(translation.file.values[given.json_path]), written(document.value(given.path))
    place = document.place(tuple(given.path.split(".")))
    text = f"{raw} means {means}, but {place} gives {present}. Change one, or delete it here."
    translation.refuse(given.json_path, text)


def _is_same(one: Any, other: Any) -> bool:
    """Compare as a recipe reads values: 2e8 is 200000000, but 1 is not true."""
    one, other = as_number(one), as_number(other)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
