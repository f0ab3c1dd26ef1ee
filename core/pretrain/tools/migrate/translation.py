"""The dialects: what their settings mean, and the functions that work out keys of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pretrain.errors import MigrateError
from pretrain.recipe.recipe import keys_of_recipe
from pretrain.recipe.section import as_text
from pretrain.tools.migrate.meaning import Mapped, NotNeeded, NotSupported
from pretrain.tools.migrate.megatron import deepspeed_file
from pretrain.tools.migrate.megatron import meanings as megatron
from pretrain.tools.migrate.neox import meanings as neox
from pretrain.tools.migrate.report import ReportLine
from pretrain.tools.migrate.setting import Derived, Settings

if TYPE_CHECKING:
    from collections.abc import Collection

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.programs import Program
    from pretrain.tools.migrate.setting import Function, Setting

Overlay = Callable[[Settings, Mapping[str, Derived]], tuple[dict[str, Derived], list[ReportLine]]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the settings of a program mean."""

    meaning: Callable[[str], Meaning | None]  # of a setting by its name; None for an unknown one
    functions: Mapping[str, Function]  # by key of the recipe
    overlay: Overlay  # what a DeepSpeed file states, over those
    read: frozenset[str] = frozenset()  # names of settings that the functions look at

    def needs(self, name: str) -> bool:
        """Say whether a recipe cannot be written without a setting's value."""
        return name in self.read or isinstance(self.meaning(name), Mapped)


def dialect_of(program: Program) -> Dialect:
    """Return the dialect of a program."""
    if program.dialect == "neox":
        return Dialect(neox.meaning_of, neox.FUNCTIONS, lambda _settings, _keys: ({}, []))
    return Dialect(
        lambda name: megatron.meaning_of(name, program.name),
        megatron.FUNCTIONS,
        deepspeed_file.values_of_file,
        megatron.READ_BY_FUNCTIONS,
    )


_OURS = {
    *("train.manual_gc", "train.manual_gc_interval", "logging.loggers", "logging.log_straggler"),
    "checkpoint.async_save",
}
"""Keys whose default is better here and changes no result: the source's default is not written out."""


class Translated(NamedTuple):
    """Keys of a recipe, and what became of each setting that is stated."""

    keys: dict[str, Derived]  # by "section.key", in the order of a recipe
    outcomes: list[ReportLine]


def translate(settings: Settings, dialect: Dialect, overridden: Collection[str] = ()) -> Translated:
    """Translate every setting, stated or by default, but for keys that the user gives (overridden)."""
    meaning_of = dialect.meaning
    keys = _worked(settings, dialect, overridden)
    values, of_file = dialect.overlay(settings, keys)
    keys = {key: values.get(key, worked) for key, worked in keys.items()} | values
    outcomes: list[ReportLine] = []
    for setting in settings.stated.values():
        if setting.value is not None:
            outcomes += _outcomes(setting, settings, meaning_of(setting.name), keys, overridden)
    outcomes += _of_defaults(settings, meaning_of, keys) + of_file
    return Translated({key: value for key, value in keys.items() if value.value is not None}, outcomes)


def _worked(settings: Settings, dialect: Dialect, overridden: Collection[str]) -> dict[str, Derived]:
    """Return every key that settings give, in the order of a recipe; one without a value has lines for the report."""
    names: dict[str, list[str]] = {}
    for name in {**settings.program.flags, **settings.stated}:
        meaning = dialect.meaning(name)
        if isinstance(meaning, Mapped):
            names.setdefault(meaning.key, []).append(name)
    found: dict[str, Derived] = {}
    for key in keys_of_recipe():
        if key in overridden:
            continue
        if key in dialect.functions:
            worked = dialect.functions[key](settings)
        else:
            worked = _single(key, names.get(key, []), settings, dialect.meaning)
        if worked is not None:
            found[key] = worked
    return found


def _single(
    key: str, names: list[str], settings: Settings, meaning_of: Callable[[str], Meaning | None]
) -> Derived | None:
    """Return a key that one setting gives: the one that is stated, else the first default."""
    stated = [settings.stated[name] for name in names if name in settings.stated]
    given = [setting for setting in stated if setting.value is not None]
    if given:
        first, value = given[0], _here(meaning_of(given[0].name), given[0].value)
        for other in given[1:]:
            if _here(meaning_of(other.name), other.value) != value:
                msg = f"{first.place}: {first.written} {first.value} and {other.place}: {other.written} {other.value}"
                msg += f" both set {key}.\nRemove one of them."
                raise MigrateError(msg)
        return Derived(value, tuple(setting.name for setting in given))
    if key in _OURS:
        return None
    defaults = [name for name in names if name not in settings.stated and settings.value(name) is not None]
    return Derived(_here(meaning_of(defaults[0]), settings.value(defaults[0])), (defaults[0],)) if defaults else None


def _here(meaning: Meaning | None, value: Any) -> Any:
    values = meaning.values if isinstance(meaning, Mapped) else {}
    return value if isinstance(value, list | dict) else values.get(value, value)


def _outcomes(
    setting: Setting,
    settings: Settings,
    meaning: Meaning | None,
    keys: Mapping[str, Derived],
    overridden: Collection[str],
) -> list[ReportLine]:
    """Return the lines of one setting: one, but for a setting that is kept in part."""
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
    flag = settings.program.flags.get(setting.name)
    default = () if flag is None else (flag.default,)
    as_without = f"{as_text(setting.value)} changes nothing"
    match meaning:
        case NotSupported(change, unless, other_model) if not _is_one_of(setting.value, (*unless, *default)):
            accept = setting.name.partition(".")[0] if other_model else ""  # of an object the whole
            return ReportLine("not supported", setting.written, change, setting.place, accept=accept)
        case NotSupported():
            why = as_without
        case NotNeeded():
            fate, why = meaning.outcome("pretrain run")
            return ReportLine(fate, setting.written, why, setting.place)
        case Mapped() if _is_one_of(setting.value, default):
            why = as_without
        case Mapped(key) if key in overridden:
            why = f"--set gives {key}"
        case Mapped(key, how=how):
            why = f"other settings decide {key}{': ' * bool(how)}{how}"
    return ReportLine("no effect", setting.written, why, setting.place)


def _is_one_of(value: Any, others: tuple[Any, ...]) -> bool:
    """Say whether a value is one of others, where True is no 1."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in others)


def _of_defaults(
    settings: Settings, meaning_of: Callable[[str], Meaning | None], keys: Mapping[str, Derived]
) -> list[ReportLine]:
    """Return what is lost of defaults that the program has and nobody stated."""
    found = []
    for key, worked in keys.items():
        for name, text in worked.lost:
            flag = settings.program.flags.get(name)
            if name not in settings.stated and flag is not None and meaning_of(name) is not None:
                accept = name if _is_of_model(key) else ""
                found.append(ReportLine("not supported", flag.spellings[0], f"{text} (a default)", accept=accept))
    return found
