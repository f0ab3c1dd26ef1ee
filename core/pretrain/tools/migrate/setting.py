"""Settings that sources state, with the lines that state them."""

from __future__ import annotations

import posixpath
import shlex
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pretrain.recipe.deepspeed.json_file import JsonFile
    from pretrain.tools.migrate.programs import Program


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a source; shown as "train.sh:24", or as the source alone where it has no lines."""

    source: str  # a file as the user named it, or "--args"
    line: int = 0  # from 1; 0 for a source of one line

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class RuntimeValue:
    """A value that only running the source would tell, or that it leaves to its reader."""

    name: str  # under which the user defines it: a variable's, or "1" for a script's first argument
    place: SourceLine  # where it is used
    why: str  # of the source, such as "$(hostname)"


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command line, with its quotes removed."""

    text: str  # its value; an unknown part of it is empty
    place: SourceLine  # for a word out of a variable, the line of the text that was assigned
    asked: tuple[RuntimeValue, ...] = ()  # values that are not known of it


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that a source states, or that the program takes by default."""

    name: str  # the program's own for it, with underscores: argparse's dest, or a YAML file's key. "num_layers"
    value: Any  # int, float, bool, str, None, or a list of them
    written: str  # as the source writes its name: "--num-layers"
    place: SourceLine | None = None  # where; None for a default


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one training, stated or by default."""

    program: Program  # the program and the version that it is taken for
    stated: Mapping[str, Setting] = field(default_factory=dict)  # by name
    devices: int | None = None  # number of devices of the whole training; None if nothing tells it
    deepspeed: JsonFile | None = None  # the DeepSpeed file that is stated; None for none
    as_meant: bool = False  # whether a DeepSpeed file counts that the program itself would not read
    vocabulary: int | None = None  # rows of the embedding, which a log tells; None if nothing does

    def setting(self, name: str) -> Setting | None:
        """Return the setting that is stated, else the program's default; None if the program has no such flag."""
        if name in self.stated:
            return self.stated[name]
        flag = self.program.flags.get(name)
        return None if flag is None else Setting(name, flag.default, flag.spellings[0])

    def value(self, name: str, otherwise: Any = None) -> Any:
        """Return the value of a setting, or `otherwise` where it is null or the program has no such flag."""
        found = self.setting(name)
        return otherwise if found is None or found.value is None else found.value

    def first(self, *names: str) -> str:
        """Return the first of these settings that has a value; empty if none has."""
        return next((name for name in names if self.value(name) is not None), "")

    def first_on(self, *names: str) -> str:
        """Return the first of these settings that is true, or neither 0 nor empty; empty if none is."""
        return next((name for name in names if self.value(name)), "")


UNKNOWN = "(not known)"
"""Value of a setting that is not known, and of which a recipe takes nothing."""


def require_known(values: Iterable[RuntimeValue], flags: Iterable[RuntimeValue]) -> None:
    """Ask for all values at once."""
    asked = _first_of_each(values)
    of_flags = {name: one for name, one in _first_of_each(flags).items() if name not in asked}
    if not asked and not of_flags:
        return
    lines = [f"{one.place}: {name} is not known: {_in_a_line(one)}" for name, one in asked.items()]
    lines += [
        f"{one.place}: {name}, which may hold flags, is not known: {_in_a_line(one)}" for name, one in of_flags.items()
    ]
    options = [f"--define {shlex.quote(f'{name}=VALUE')}" for name in asked]
    options += [f"--define {shlex.quote(f'{name}=')}" for name in of_flags]
    raise MigrateError("\n".join([*lines, f"No source gives a value. Give {' '.join(options)}"]))


def _in_a_line(value: RuntimeValue) -> str:
    """Return why a value is not known; a line of a script may go on for many lines of its file."""
    return textwrap.shorten(value.why, 120, placeholder=" ...")


def _first_of_each(asked: Iterable[RuntimeValue]) -> dict[str, RuntimeValue]:
    found: dict[str, RuntimeValue] = {}
    for one in asked:
        found.setdefault(one.name, one)
    return found


@dataclass(frozen=True, slots=True)
class MigrateOptions:
    """Choices that the sources leave to the user."""

    program: str = ""  # --from: a version or a family; empty for the newest version that has all flags
    devices: int | None = None  # of the whole training; None to take the launcher's
    as_meant: bool = False  # whether a DeepSpeed file counts that the program itself would not read
    overrides: tuple[str, ...] = ()  # "section.key=value" of the recipe
    accepted: frozenset[str] = frozenset()  # names of settings without which the model may compute something else


@dataclass(frozen=True, slots=True)
class Derived:
    """A key's value, worked out of settings."""

    value: Any  # plain data of a recipe; None leaves the key out
    names: tuple[str, ...]  # the settings that it was worked out of
    note: str = ""  # for the comment beside the value
    lost: tuple[tuple[str, str], ...] = ()  # names of settings, with what the value does not keep of them
    idle: tuple[tuple[str, str], ...] = ()  # names of settings, with why the program itself takes nothing from them
    place: SourceLine | None = None  # of a DeepSpeed file, which has no settings


def unused(names: str | Iterable[str], why: str) -> Derived:
    """Return no value, and say why the program itself takes nothing from a setting, or from several."""
    return Derived(None, (), idle=tuple((name, why) for name in ([names] if isinstance(names, str) else names)))


def in_place(value: Any, name: str, change: str) -> Derived:
    """Return a value that stands in the place of a setting's, and say what changes by it."""
    return Derived(value, (), lost=((name, change),))


def taken(settings: Settings, name: str) -> Derived | None:
    """Return a setting's value as it is; None without one."""
    given = settings.value(name)
    return None if given is None else Derived(given, (name,))


def taken_if_on(settings: Settings, name: str) -> Derived | None:
    """Return a setting's value as it is; None for 0, false or none."""
    return taken(settings, name) if settings.value(name) else None


Function = Callable[[Settings], Derived | None]


def save(settings: Settings) -> Derived:
    """Return the folder of checkpoints; without one the source saves none."""
    given = settings.value("save")
    return Derived(False if given is None else given, ("save",), "" if given else "the source saves nothing")


def note_on_start(settings: Settings, given: Any) -> str:
    """Return a note on a folder to start from; the one that the run itself fills may be empty."""
    own = settings.value("save")
    is_own = own is not None and posixpath.normpath(str(given)) == posixpath.normpath(str(own))
    return "" if is_own else "an error without a checkpoint; the source would start afresh"
