"""Runs of a script until bash misses no value: each missing one gets a marker, or a number to calculate with."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.cell.namespaces import CellScript, run_in_cell, whole_commands
from pretrain.tools.migrate.setting import RuntimeValue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.tools.migrate.cell.namespaces import Told
    from pretrain.tools.migrate.setting import SourceLine

_MOST = 100
_UNSET = re.compile(r"line \d+: !?(?:\$?(\w+))(?:\[[^]]*\])?: (?:unbound variable|parameter (?:null or )?not set)")
_REQUIRED = re.compile(r"line \d+: (\w+): ")
_CALCULATED = re.compile(r"error token|integer expression|syntax error|invalid|operand expected|numeric argument")
_ONE, _OTHER = "8", "16"
_OF_FUNCTIONS = re.compile(r"(?<![\\'])\$([1-9])(?!\w)")


@dataclass(slots=True)
class Trials:
    """A script with what was found out about its values."""

    path: Path  # the script
    text: str  # of it
    defined: Mapping[str, str]  # values that the user gives, by name
    variables: Mapping[str, str]  # values of its environment, by name
    unset: list[str] = field(default_factory=list)  # names of variables that it takes from its environment and has not
    numbers: list[str] = field(default_factory=list)  # those that it calculates with
    arguments: list[str] = field(default_factory=list)  # of the script

    def run(self) -> Told:
        """Run the script until nothing is missing, and return what the last run told."""
        self.arguments = _arguments(self.defined)
        for _ in range(_MOST):
            told = run_in_cell(self._given())
            if not self._learned(told.said):
                return told
        msg = f"{self.path.name}: too many variables have no value, such as {self.unset[-1]}.\nGive a simpler script."
        raise MigrateError(msg)

    def other(self, name: str) -> Told:
        """Return what a run tells in which a value is another one: another number, or empty."""
        if name in self.numbers:
            return run_in_cell(self._given(other=name))
        given = self._given()
        roots = tuple(root for root in given.roots if root != name)
        return run_in_cell(replace(given, environment={**given.environment, name: ""}, roots=roots))

    def _learned(self, said: str) -> bool:
        """Say whether errors of bash name a value that was not known to be missing."""
        required = [name for name in _REQUIRED.findall(said) if re.search(rf"\$\{{{name}:?\?", self.text)]
        names = [*_UNSET.findall(said), *required]
        new = next((name for name in names if not self._is_known(name)), None)
        if new is not None:
            self._add(new)
            return True
        lines = [line for line in said.splitlines() if _CALCULATED.search(line)]
        calculated = {name for line in lines for name in MARKER.findall(line)} - {*self.numbers, *self.defined}
        self.numbers += sorted(calculated)
        return bool(calculated)

    def _is_known(self, name: str) -> bool:
        if name.isdecimal():
            return int(name) <= len(self.arguments) and _OF_FUNCTIONS.search(self.text) is None
        return name in self.unset

    def _add(self, name: str) -> None:
        if not name.isdecimal():
            self.unset.append(name)
        elif int(name) > len(self.arguments):
            self.arguments += [marker(str(at)) for at in range(len(self.arguments) + 1, int(name) + 1)]
        else:  # a function is called with fewer arguments than it looks at
            self.text = "\n".join(
                line if "awk" in line else _OF_FUNCTIONS.sub(r"${\1-}", line) for line in self.text.split("\n")
            )

    def _given(self, other: str = "") -> CellScript:
        numbers = {name: _OTHER if name == other else _ONE for name in self.numbers}
        values = {name: numbers.get(name, marker(name)) for name in self.unset}
        names = {name: value for name, value in self.defined.items() if name.isidentifier()}
        options = re.match(r"#!\s*\S*/(?:env\s+(?:-S\s+)?)?bash\s+(-\w+)", self.text)  # the kernel hands them to bash
        arguments = (numbers.get(str(at), value) for at, value in enumerate(self.arguments, 1))
        return CellScript(
            self.path,
            without_placeholders(self.text, self.defined),
            (options[1],) if options else (),
            tuple(arguments),
            {**self.variables, **values, **names},
            (*self.unset, *(name for name in self.numbers if name.isdecimal())),
            numbers,
            names,
            {name: value for name, value in self.defined.items() if re.fullmatch(r"[\w.+-]+", name)},
        )


def trainings_of(told: Told) -> list[tuple[str, ...]]:
    """Return the commands of a run that start a Python program."""
    return [words for _, words in whole_commands(told.records) if any(word.endswith(".py") for word in words)]


def _arguments(defined: Mapping[str, str]) -> list[str]:
    if "@" in defined:
        try:
            return shlex.split(defined["@"])
        except ValueError as error:
            msg = f"--define @={defined['@']}: {error}.\n"
            msg += "Give the script's arguments, quoted as in a shell: --define @=\"8 'a b'\"."
            raise MigrateError(msg) from error
    last = max((int(name) for name in defined if name.isdecimal()), default=0)
    return [defined.get(str(at), marker(str(at))) for at in range(1, last + 1)]


MARKER = re.compile("\u27e6([^\u27e6\u27e7]*)\u27e7")

_HIDDEN = str.maketrans("<> ", "\u2039\u203a\u2423")
_SHOWN = str.maketrans("\u2039\u203a\u2423", "<> ")
"""Signs of a placeholder that bash would not leave alone, and those in their place."""

_HOLE = r"<[A-Za-z\u0080-\U0010ffff][^<>\n|&;\"'`$]*[\w./-]>"
_PLACEHOLDER = re.compile(
    rf"^(?P<before>[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_]\w*)=[\"']?)(?P<value>{_HOLE}|(?<=[\"'])[Yy]our [\w ./-]+)"
    r"(?P<note>[ \t]*\(e\.g\.[^\n()]*\))?"
    rf"|(?<=[\s=\"'])(?P<other>{_HOLE})",
    re.MULTILINE,
)


def marker(name: str) -> str:
    """Return the word that stands for a value."""
    return f"\u27e6{name}\u27e7"


def without_placeholders(text: str, defined: Mapping[str, str]) -> str:
    """Return a script whose placeholders, NAME=<Specify path> or NAME="your path", are markers."""

    def filled(found: re.Match[str]) -> str:
        name = found["name"] or found["other"]
        return (found["before"] or "") + defined.get(name, marker(name.translate(_HIDDEN)))

    return _PLACEHOLDER.sub(filled, text)


def asked_in(text: str, place: SourceLine, reasons: Mapping[str, tuple[SourceLine, str]]) -> tuple[RuntimeValue, ...]:
    """Return what is asked for of a text with markers."""
    names = dict.fromkeys(name.translate(_SHOWN) for name in MARKER.findall(text))
    written = {name: name if name.startswith("<") else f"${name}" for name in names}
    return tuple(RuntimeValue(name, *reasons.get(name, (place, written[name]))) for name in names)
