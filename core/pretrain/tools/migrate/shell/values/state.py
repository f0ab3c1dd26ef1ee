"""Knowledge of a shell at one point of a script: variables, arguments, functions, options and written files."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Place
from pretrain.tools.migrate.shell.spans import Text, known, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Asked
    from pretrain.tools.migrate.shell.syntax.tree import Function

NONZERO = -1
"""A status of a command that is known to have failed, but not with which number."""

DYNAMIC = {
    *[
        "RANDOM",
        "SRANDOM",
        "SECONDS",
        "LINENO",
        "EPOCHSECONDS",
        "EPOCHREALTIME",
        "BASHPID",
        "BASH_COMMAND",
        "BASH_SUBSHELL",
        "BASH_SOURCE",
    ],
    *[
        "BASH_LINENO",
        "BASH_ARGC",
        "BASH_ARGV",
        "BASH_ARGV0",
        "BASH_VERSION",
        "FUNCNAME",
        "PIPESTATUS",
        "DIRSTACK",
        "GROUPS",
        "UID",
        "EUID",
        "PPID",
    ],
    *[
        "SHELLOPTS",
        "BASHOPTS",
        "PWD",
        "OLDPWD",
        "BASH_REMATCH",
        "OPTARG",
        "OPTIND",
        "REPLY",
        "_",
        "COMP_WORDBREAKS",
        "BASH_ALIASES",
        "BASH_CMDS",
    ],
}
"""Variables that bash itself sets; their values are asked for even if the script assigns them."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A variable.

    Attributes:
        elements: by index, 0 alone for no array; empty for a variable that is not set; None if unknown.
        is_array: whether it is, or where unknown might be, an array.
        is_exported: whether commands see it.
        is_opaque: whether what is assigned to it is not its value, as for an integer or a read-only variable.
        why: it is unknown.
    """

    elements: Mapping[int, Text] | None
    is_array: bool = False
    is_exported: bool = False
    is_opaque: bool = False
    why: str = ""

    def same(self, other: Cell | None) -> bool:
        """Say whether two cells are the same value."""
        return (
            other is not None
            and self.elements == other.elements
            and (self.is_array, self.is_exported, self.is_opaque)
            == (other.is_array, other.is_exported, other.is_opaque)
        )


class Budget:
    """The work that reading one script may take, in statements and in characters."""

    def __init__(self, source: str) -> None:
        """Begin with all of it."""
        self.source, self.steps, self.characters, self.depth = source, 20_000, 2_000_000, 0

    def spend_round(self) -> None:
        """Take a round of a loop from it."""
        self.spend(Place(self.source))

    def exhaust(self) -> None:
        """Raise the error of a budget that is spent."""
        self.steps = 0
        self.spend_round()

    def spend(self, place: Place, steps: int = 1, characters: int = 0) -> None:
        """Take from it.

        Raises:
            MigrateError: nothing is left.
        """
        self.steps -= steps
        self.characters -= characters
        if self.steps < 0 or self.characters < 0:
            what = "statements" if self.steps < 0 else "characters"
            msg = f"{place}: running this script takes too many {what}, perhaps in a loop without an end."
            msg += "\nA launch script takes a few hundred.\nName a script that only starts the training."
            raise MigrateError(msg)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments $1, $2, ...

    Attributes:
        known: the first ones.
        rest: asks for all after the known ones; None if there are no more.
        offset: number of the script's own arguments that were shifted away; None where they are others.
    """

    known: tuple[Text, ...] = ()
    rest: Asked | None = None
    offset: int | None = None


@dataclass(slots=True)
class State:
    """A shell at one point of a script."""

    defined: Mapping[str, str]
    budget: Budget
    frames: list[dict[str, Cell]] = field(default_factory=lambda: [{}])
    arguments: Arguments = field(default_factory=Arguments)
    functions: dict[str, Function | None] = field(default_factory=dict)
    files: dict[str, Text | None] = field(default_factory=dict)
    options: dict[str, bool | None] = field(default_factory=dict)
    unsure: frozenset[str] = frozenset()
    status: int | None = 0
    output: Text | None = field(default_factory=Text)
    input: Text | None = None

    def copy(self) -> State:
        """Return the same state, which changes on its own."""
        return replace(
            self, frames=[dict(frame) for frame in self.frames], functions=dict(self.functions),
            files=dict(self.files), options=dict(self.options),
        )  # fmt: skip

    def cell(self, name: str) -> Cell | None:
        """Return a variable; None for one of the environment, of which nothing is known."""
        return next((frame[name] for frame in reversed(self.frames) if name in frame), None)

    def put(self, name: str, cell: Cell, *, local: bool = False) -> None:
        """Set a variable where it is, or in the innermost function."""
        holders = [frame for frame in reversed(self.frames) if name in frame]
        frame = self.frames[-1] if local else (holders or self.frames)[0]
        before = frame.get(name)
        if name in self.unsure:
            for other in self.frames:
                other[name] = Cell(None, is_array=True, why="it is set in a function that may have its own")
            return
        exported = (
            cell.is_exported or (before is not None and before.is_exported) or bool(self.options.get("allexport"))
        )
        if before is not None and before.is_opaque and not local:
            cell = Cell(None, is_array=True, is_opaque=True, why=cell.why)
        if name in DYNAMIC:
            cell = Cell(None, is_array=True)
        frame[name] = replace(cell, is_exported=exported)

    def unset(self, name: str) -> None:
        """Note that a variable is not set."""
        frame = next((frame for frame in reversed(self.frames) if name in frame), self.frames[0])
        before = frame.get(name)
        if name in self.unsure or (before and before.is_opaque):
            self.forget(name, "it is unset")
        else:
            frame[name] = Cell({})

    def enter(self, arguments: Arguments, cells: Mapping[str, Cell] | None = None) -> None:
        """Begin a function with arguments and variables of its own."""
        self.frames.append(dict(cells or {}))
        self.arguments = arguments

    def leave(self, frames: int, arguments: Arguments) -> None:
        """End functions, until so many frames are left, with the arguments that were before."""
        del self.frames[frames:]
        for name in self.unsure:
            for frame in self.frames:
                if name in frame or frame is self.frames[0]:
                    frame[name] = Cell(None, is_array=True, why="it is set in a function that may have its own")
        if frames == 1:
            self.unsure = frozenset()
        self.arguments = arguments

    def forget(self, name: str, why: str) -> None:
        """Note that only running the script tells a variable."""
        self.put(name, Cell(None, is_array=True, why=why))

    def forget_all(self, why: str) -> None:
        """Note that nothing is known any more of what was assigned until here."""
        for frame in self.frames:
            for name, cell in frame.items():
                frame[name] = Cell(None, is_array=True, is_exported=cell.is_exported, is_opaque=cell.is_opaque, why=why)

    def value(self, name: str, place: Place) -> Text | None:
        """Return a variable's value; None for one that is known not to be set."""
        if name in self.defined:
            return known(self.defined[name], place)
        cell = self.cell(name)
        if cell is None or cell.elements is None:
            why = cell.why if cell and cell.why else f"${name}"
            return unknown(name, place, why)
        return cell.elements.get(0)

    def elements(self, name: str, place: Place) -> Mapping[int, Text] | None:
        """Return the elements of an array; None where they are unknown."""
        cell = self.cell(name)
        if name in self.defined:
            is_array = cell is not None and cell.is_array
            words = _words(self.defined[name]) if is_array else [self.defined[name]]
            return {index: known(word, place) for index, word in enumerate(words)}
        return None if cell is None else cell.elements

    def same(self, other: State) -> bool:
        """Say whether both are the same for all that follows; their last statuses do not count."""
        return (
            len(self.frames) == len(other.frames)
            and all(_same(mine, theirs) for mine, theirs in zip(self.frames, other.frames, strict=True))
            and self.arguments == other.arguments
            and (self.functions, self.files, self.options) == (other.functions, other.files, other.options)
            and self.output == other.output
            and self.unsure == other.unsure
        )


def _words(text: str) -> list[str]:
    """Return the elements of an array that a definition gives, in quotes where they have blanks."""
    try:
        return shlex.split(text)
    except ValueError:
        return [text]


def _same(mine: Mapping[str, Cell], theirs: Mapping[str, Cell]) -> bool:
    return mine.keys() == theirs.keys() and all(cell.same(theirs[name]) for name, cell in mine.items())
