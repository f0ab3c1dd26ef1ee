"""Settings that sources state, with the lines that state them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe.deepspeed.json_file import JsonFile
    from pretrain.tools.migrate.programs.program import Program


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a source; shown as "train.sh:24", or as the source alone where it has no lines.

    Attributes:
        source: a file as the user named it, or "--args".
        line: from 1; 0 for a source of one line.
    """

    source: str
    line: int = 0

    def __str__(self) -> str:
        """Return "train.sh:24"."""
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Asked:
    """A value that only running the source would tell, or that it leaves to its reader.

    Attributes:
        name: under which the user defines it: a variable's, or "1" for a script's first argument.
        place: where it is used.
        why: of the source, such as "$(hostname)".
    """

    name: str
    place: Place
    why: str


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command line, with its quotes removed.

    Attributes:
        text: its value; an unknown part of it is empty.
        place: where the source writes it: for a word out of a variable, the line of the text that was assigned.
        asked: values that are not known of it.
    """

    text: str
    place: Place
    asked: tuple[Asked, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that a source states, or that the program takes by default.

    Attributes:
        name: the program's own for it, with underscores: argparse's dest, or a YAML file's key. "num_layers".
        value: int, float, bool, str, None, or a list of them.
        written: as the source writes its name: "--num-layers".
        place: where; None for a default.
    """

    name: str
    value: Any
    written: str
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one training, stated or by default.

    Attributes:
        program: the program and the version that it is taken for.
        stated: by name.
        devices: number of devices of the whole training; None if nothing tells it.
        deepspeed: the DeepSpeed file that is stated; None for none.
        as_meant: whether a DeepSpeed file counts that the program itself would not read.
    """

    program: Program
    stated: Mapping[str, Setting] = field(default_factory=dict)
    devices: int | None = None
    deepspeed: JsonFile | None = None
    as_meant: bool = False

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
