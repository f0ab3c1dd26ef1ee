"""Translate the keys of a DeepSpeed file, and merge them into the document of the recipe that names it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pretrain.errors import did_you_mean
from pretrain.recipe.deepspeed import key_functions
from pretrain.recipe.deepspeed.json_file import AUTO, JsonFile, read_inline, read_json, written
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
from pretrain.recipe.section import as_number, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.recipe.document import Document
    from pretrain.recipe.recipe import AccumulationSteps

GivenKind = Literal["is", "is not", "by default"]
Kind = Literal["wrong", "absent", "removed", "notice", "by default", "settled", "rounded", "not given"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """Statement of a file about one key of the recipe."""

    json_path: str
    path: str
    value: Any  # None: the recipe may not give it
    kind: GivenKind = "is"  # the recipe may override a default
    unless: tuple[str, ...] = ()  # keys of the recipe with which a default would have no effect


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRemark:
    """Statement about a key of the file that gives no key of the recipe, or is more than it.

    "wrong" is a mistake; "absent" a key that a recipe does not have, "removed" one that DeepSpeed no longer has;
    "notice" is for the user, and "by default" too, of what comes with a key; "settled" matches fixed behaviour;
    "rounded" is a whole number that was written as 2e8 or 1.0; "not given" is null or "auto".
    """

    json_path: str
    kind: Kind
    text: str  # a sentence; of the last three kinds the value


@dataclass(slots=True)
class Translation:
    """Keys of a recipe that a DeepSpeed file gives, with problems and notices."""

    file: JsonFile
    given: list[Given] = field(default_factory=list)  # in the order of the file, defaults last
    remarks: list[KeyRemark] = field(default_factory=list)
    accumulation_steps: AccumulationSteps | None = None
    merged: set[str] = field(default_factory=set)  # keys of the recipe that the file gave, and not the recipe itself

    @property
    def problems(self) -> list[str]:
        """Return lines of an error."""
        return [
            f"{self.file.place(remark.json_path)}: {remark.text}{' Delete it.' * (remark.kind != 'wrong')}"
            for remark in self.of("wrong", "absent", "removed")
        ]

    @property
    def notices(self) -> list[str]:
        """Return lines that the user is shown: one for all keys that are settled, one for all that are rounded."""
        notices = self._lines("notice")
        summaries = {"settled": "these match pretrain's fixed behaviour", "rounded": "these were read as whole numbers"}
        for kind, words in summaries.items():
            remarks = [f"{remark.json_path}: {remark.text}" for remark in self.remarks if remark.kind == kind]
            if remarks:
                notices.append(f"{self.file.name}: {words}: {', '.join(remarks)}.")
        return notices + self._lines("by default")

    def of(self, *kinds: Kind) -> list[KeyRemark]:
        """Return the remarks of some kinds."""
        return [remark for remark in self.remarks if remark.kind in kinds]

    def give(self, json_path: str, path: str, value: Any, kind: GivenKind = "is", unless: tuple[str, ...] = ()) -> None:
        """Set a key of the recipe."""
        self.given.append(Given(json_path=json_path, path=path, value=value, kind=kind, unless=unless))

    def remark(self, json_path: str, kind: Kind, text: str) -> None:
        """Add a remark."""
        self.remarks.append(KeyRemark(json_path=json_path, kind=kind, text=text))

    def refuse(self, json_path: str, text: str) -> None:
        """Add a problem with a key."""
        self.remark(json_path, "wrong", text)

    def notice(self, json_path: str, text: str) -> None:
        """Add a notice about the meaning of a key."""
        self.remark(json_path, "notice", text)

    def settle(self, json_path: str, value: Any) -> None:
        """Note a key that matches fixed behaviour."""
        self.remark(json_path, "settled", written(value))

    def is_switch(self, json_path: str, value: Any) -> bool:
        """Return whether the value is true or false; a problem if not."""
        if not isinstance(value, bool):
            self.refuse(json_path, f"{shown(value)} is not true or false.")
        return isinstance(value, bool)

    def _lines(self, kind: Kind) -> list[str]:
        return [f"{self.file.place(remark.json_path)}: {remark.text}" for remark in self.of(kind)]


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


NOTHING = Translation(JsonFile("", {}, {}))
"""Of a recipe without a DeepSpeed file."""

_CONFIG = "engine.deepspeed_config"


def merge_deepspeed(document: Document) -> Translation:
    """Replace a DeepSpeed file's name, or its content, in the document by the keys that it is translated to.

    Without engine.name: deepspeed the name stays where it is, as a key without effect.
    """
    named = document.value(_CONFIG)
    if not isinstance(named, str | dict) or not named or document.value("engine.name") != "deepspeed":
        return NOTHING
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
