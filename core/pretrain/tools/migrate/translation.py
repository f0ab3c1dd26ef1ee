"""The dialects: what their settings mean, and the functions that work out keys of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.recipe.recipe import keys_of_recipe
from pretrain.tools.migrate.meaning import Ignored, Launched, Mapped, Meaning, NoEffect, NotSupported, Replaced
from pretrain.tools.migrate.megatron import deepspeed_file
from pretrain.tools.migrate.megatron.meanings import FUNCTIONS as OF_MEGATRON
from pretrain.tools.migrate.megatron.meanings import READ_BY_FUNCTIONS
from pretrain.tools.migrate.megatron.meanings import meaning_of as of_megatron
from pretrain.tools.migrate.neox.meanings import FUNCTIONS as OF_NEOX
from pretrain.tools.migrate.neox.meanings import meaning_of as of_neox
from pretrain.tools.migrate.report import ReportLine
from pretrain.tools.migrate.setting import Derived, Settings

if TYPE_CHECKING:
    from collections.abc import Collection

    from pretrain.tools.migrate.programs import Program
    from pretrain.tools.migrate.setting import Function, Setting


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect.

    Attributes:
        meaning: of a setting by its name; None for an unknown one.
        functions: by key of the recipe.
        overlay: what a DeepSpeed file states, over those.
        read: names of settings that the functions look at.
    """

    meaning: Callable[[str], Meaning | None]
    functions: Mapping[str, Function]
    overlay: Overlay
    read: frozenset[str] = frozenset()

    def needs(self, name: str) -> bool:
        """Say whether a recipe cannot be written without a setting's value."""
        return name in self.read or isinstance(self.meaning(name), Mapped)


def dialect_of(program: Program) -> Dialect:
    """Return the dialect of a program."""
    if program.dialect == "neox":
        return Dialect(of_neox, OF_NEOX, lambda _settings, _keys: ({}, []))
    return Dialect(
        lambda name: of_megatron(name, program.name), OF_MEGATRON, deepspeed_file.values_of_file, READ_BY_FUNCTIONS
    )


MeaningOf = Callable[[str], Meaning | None]
Overlay = Callable[[Settings, Mapping[str, Derived]], tuple[dict[str, Derived], list[ReportLine]]]

_OURS = {
    *("train.manual_gc", "train.manual_gc_interval", "logging.tensorboard", "logging.log_straggler"),
    "checkpoint.async_save",
}
"""Keys whose default is better here and changes no result: the source's default is not written out."""


@dataclass(slots=True)
class Translated:
    """Keys of a recipe, and what became of each setting.

    Attributes:
        keys: value by "section.key", in the order of a recipe.
        outcomes: for each setting that is stated.
    """

    keys: dict[str, Derived] = field(default_factory=dict)
    outcomes: list[ReportLine] = field(default_factory=list)


def translate(
    settings: Settings,
    meaning_of: MeaningOf,
    functions: Mapping[str, Function],
    overlay: Overlay,
    overridden: Collection[str] = (),
) -> Translated:
    """Translate every setting, stated or by default.

    Args:
        settings: of one training.
        meaning_of: meaning of a setting by its name; None for an unknown one.
        functions: by key of the recipe that several settings make.
        overlay: returns keys that win over those, and outcomes of its own.
        overridden: keys that the user gives, which are not worked out.
    """
    keys = _worked(settings, meaning_of, functions, overridden)
    values, outcomes = overlay(settings, keys)
    keys = {key: values.get(key, worked) for key, worked in keys.items()} | values
    translation = Translated({key: value for key, value in keys.items() if value.value is not None})
    for setting in settings.stated.values():
        if setting.value is not None:
            translation.outcomes += _outcomes(setting, settings, meaning_of, keys, overridden)
    translation.outcomes += _of_defaults(settings, meaning_of, keys) + outcomes
    return translation


def _worked(
    settings: Settings, meaning_of: MeaningOf, functions: Mapping[str, Function], overridden: Collection[str]
) -> dict[str, Derived]:
    """Return every key that settings give, in the order of a recipe; one without a value has lines for the report."""
    names: dict[str, list[str]] = {}
    for name in {**settings.program.flags, **settings.stated}:
        meaning = meaning_of(name)
        if isinstance(meaning, Mapped):
            names.setdefault(meaning.key, []).append(name)
    found: dict[str, Derived] = {}
    for key in keys_of_recipe():
        if key in overridden:
            continue
        if key in functions:
            worked = functions[key](settings)
        else:
            worked = _single(key, names.get(key, []), settings, meaning_of)
        if worked is not None:
            found[key] = worked
    return found


def _single(key: str, names: list[str], settings: Settings, meaning_of: MeaningOf) -> Derived | None:
    """Return a key that one setting gives: the one that is stated, else the first default."""
    stated = [settings.stated[name] for name in names if name in settings.stated]
    given = [setting for setting in stated if setting.value is not None]
    if given:
        values = [_here(meaning_of(setting.name), setting.value) for setting in given]
        for setting, value in zip(given[1:], values[1:], strict=True):
            if value != values[0]:
                raise MigrateError(_contradiction(key, given[0], setting))
        return Derived(values[0], tuple(setting.name for setting in given))
    if key in _OURS:
        return None
    defaults = [name for name in names if name not in settings.stated and settings.value(name) is not None]
    return Derived(_here(meaning_of(defaults[0]), settings.value(defaults[0])), (defaults[0],)) if defaults else None


def _contradiction(key: str, one: Setting, other: Setting) -> str:
    return (
        f"{one.place}: {one.written} {one.value} and {other.place}: {other.written} {other.value} are both {key}.\n"
        "Remove one of them."
    )


def _here(meaning: Meaning | None, value: Any) -> Any:
    """Return a value as it is called here."""
    values = meaning.values if isinstance(meaning, Mapped) else {}
    return value if isinstance(value, list | dict) else values.get(value, value)


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _outcomes(
    setting: Setting,
    settings: Settings,
    meaning_of: MeaningOf,
    keys: Mapping[str, Derived],
    overridden: Collection[str],
) -> list[ReportLine]:
    """Return the lines of one setting: one, but for a setting that is kept in part."""
    meaning = meaning_of(setting.name)
    if meaning is None:
        msg = f"{setting.place}: {setting.written} is unknown.\nCorrect it, or remove it."
        raise MigrateError(msg)
    special = _special(setting, keys)
    became = tuple(key for key, worked in keys.items() if setting.name in worked.names and worked.value is not None)
    if special or not became:
        return special or [_not_carried(setting, meaning, settings, overridden)]
    note = meaning.note if isinstance(meaning, Mapped) else ""
    return [ReportLine("carried over", setting.written, ", ".join(became), setting.place, became, note)]


def _special(setting: Setting, keys: Mapping[str, Derived]) -> list[ReportLine]:
    """Return what the functions say of a setting: what is lost of it, or why the program itself does not read it."""
    lost = [
        ReportLine("not supported", setting.written, text, setting.place, accept=name if _is_of_model(key) else "")
        for key, worked in keys.items()
        for name, text in worked.lost
        if name == setting.name
    ]
    idle = [text for worked in keys.values() for name, text in worked.idle if name == setting.name]
    return lost + [ReportLine("no effect", setting.written, text, setting.place) for text in idle]


def _is_of_model(key: str) -> bool:
    """Say whether a key decides what the model computes; its first weights do not."""
    return key == "kernels.attention" or (key.startswith("model.") and not key.endswith("init_method"))


def _not_carried(setting: Setting, meaning: Meaning, settings: Settings, overridden: Collection[str]) -> ReportLine:
    """Return the line of a setting of which no key takes anything."""
    if isinstance(meaning, NotSupported):
        return _not_supported(setting, meaning, settings)
    if isinstance(meaning, Replaced | Launched):
        text = meaning.by if isinstance(meaning, Replaced) else f"of pretrain run: {meaning.option}"
        return ReportLine("replaced", setting.written, text, setting.place)
    if isinstance(meaning, NoEffect | Ignored):
        return ReportLine("no effect", setting.written, meaning.why, setting.place)
    flag = settings.program.flags.get(setting.name)
    if flag is not None and _equal(setting.value, flag.default):
        return ReportLine("no effect", setting.written, f"{_shown(setting.value)} is as without it", setting.place)
    if meaning.key in overridden:
        return ReportLine("no effect", setting.written, f"--set gives {meaning.key}", setting.place)
    text = f"nothing follows from it beside the other settings ({meaning.key}{': ' * bool(meaning.how)}{meaning.how})"
    return ReportLine("no effect", setting.written, text, setting.place)


def _not_supported(setting: Setting, meaning: NotSupported, settings: Settings) -> ReportLine:
    flag = settings.program.flags.get(setting.name)
    as_without = (*meaning.unless, *(() if flag is None else (flag.default,)))
    if any(_equal(setting.value, value) for value in as_without):
        return ReportLine("no effect", setting.written, f"{_shown(setting.value)} is as without it", setting.place)
    accept = setting.name.partition(".")[0] if meaning.other_model else ""  # of an object the whole
    return ReportLine("not supported", setting.written, meaning.change, setting.place, accept=accept)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_defaults(settings: Settings, meaning_of: MeaningOf, keys: Mapping[str, Derived]) -> list[ReportLine]:
    """Return what is lost of defaults that the program has and nobody stated."""
    found = []
    for key, worked in keys.items():
        for name, text in worked.lost:
            flag = settings.program.flags.get(name)
            if name not in settings.stated and flag is not None and meaning_of(name) is not None:
                accept = name if _is_of_model(key) else ""
                found.append(ReportLine("not supported", flag.spellings[0], f"{text} (a default)", accept=accept))
    return found
