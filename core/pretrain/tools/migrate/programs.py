"""Programs that people train with: their flags, and the versions whose defaults differ."""

from __future__ import annotations

import json
from collections import ChainMap
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from pretrain.errors import MigrateError, did_you_mean
from pretrain.tools.migrate.meaning import table_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Kind = Literal["int", "float", "str", "bool", "switch", "object", "pattern"]
"""Type of a value: an "object" is a mapping or a list of a YAML file, a "pattern" an int or "([0]*3+[1])*6"."""

Dialect = Literal["megatron", "neox"]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of a program, as its parser defines it."""

    name: str  # argparse's dest, or the key of a YAML file with underscores
    spellings: tuple[str, ...]  # "--num-layers", the usual one first; "num-layers" for a key of a YAML file
    kind: Kind
    default: Any = None
    given: Any = None  # value of a switch that is given: True, False, or a constant
    nargs: int | str | None = None  # as argparse has it: None for one value, "?", "*", "+", or a number
    choices: tuple[Any, ...] = ()  # allowed values; empty for any


@dataclass(frozen=True, slots=True)
class Program:
    """One version of a program."""

    name: str  # as --from takes it, "megatron-lm-2023.07"
    title: str  # for people, "Megatron-LM of July 2023"
    dialect: Dialect  # whose meanings its settings have
    flags: Mapping[str, Flag]  # by name; several flags may set one name, "--no-x" and "--x"
    spelled: Mapping[str, Flag]  # all of them, by spelling
    refused: frozenset[str] = frozenset()  # names of flags that the parser accepts and validate_args then refuses
    prefixes: bool = False  # whether the parser takes the beginning of a flag for the flag
    elsewhere: Mapping[str, Flag] = field(default_factory=dict)  # of other programs of this dialect, by spelling


class Version(NamedTuple):
    """A version of a program, as tables/versions.tsv has it; older ones with the same defaults are one with it."""

    name: str  # as --from takes it
    title: str
    family: str  # the program; --from takes it too
    dialect: Dialect
    commit: str  # of the program's repository
    scripts: tuple[str, ...]  # files that start its training
    refused: frozenset[str]
    prefixes: bool
    also: tuple[str, ...]  # the older ones, as --from takes them
    base: str  # version whose flags it has beside its own


def _versions() -> Iterator[Version]:
    for line in table_lines("versions.tsv")[1:]:
        family, version, title, dialect, commit, older, scripts, refused, prefixes, base = line.split("\t")
        yield Version(
            name=f"{family}-{version}",
            title=title,
            family=family,
            dialect=cast("Dialect", dialect),
            commit=commit,
            scripts=tuple(scripts.split()),
            refused=frozenset(refused.split()),
            prefixes=bool(prefixes),
            also=tuple(f"{family}-{name}" for name in older.split()),
            base=base,
        )


VERSIONS = tuple(_versions())
"""Of each family the oldest first; the families in the order in which a command is taken for one."""

FAMILIES = tuple(dict.fromkeys(version.family for version in VERSIONS))
_VERSIONS = {version.name: version for version in VERSIONS}
_NAMES = _VERSIONS | {older: version for version in VERSIONS for older in version.also}
_ORDER = list(_VERSIONS)


@cache
def programs() -> Mapping[str, Program]:
    """Return all programs by name, as VERSIONS orders them."""
    return MappingProxyType({version.name: _program(version) for version in VERSIONS})


def program(name: str) -> Program:
    """Return the program of a version's name; of a family its newest version."""
    if name in FAMILIES:
        return family_of(name)[-1]
    if name not in _NAMES:
        near = did_you_mean(name, (*FAMILIES, *_NAMES))
        named = f"Programs are {', '.join(FAMILIES)}, each alone or with a version:"
        msg = f"--from {name}: no such program.{near}\n{named}\n{', '.join(_NAMES)}."
        raise MigrateError(msg)
    return programs()[_NAMES[name].name]


def family_of(name: str) -> tuple[Program, ...]:
    """Return the versions of a family, or of a version's family, the oldest first."""
    family = _NAMES[name].family if name in _NAMES else name
    return tuple(programs()[version.name] for version in VERSIONS if version.family == family)


def version_of(program: Program) -> Version:
    """Return the version that a program is."""
    return _VERSIONS[program.name]


def _program(version: Version) -> Program:
    by_version = _flags_by_version(version.dialect)
    flags = by_version[version.name]
    if version.base:
        own = {flag.name for flag in flags}
        flags = [*flags, *(flag for flag in by_version[version.base] if flag.name not in own)]
    alike = [other for other in VERSIONS[::-1] if other.dialect == version.dialect]
    nearest = sorted(alike, key=lambda other: other.family != version.family)
    return Program(
        name=version.name,
        title=version.title,
        dialect=version.dialect,
        flags=_first(flags, lambda flag: (flag.name,)),
        spelled=_first(flags, lambda flag: flag.spellings),
        refused=version.refused,
        prefixes=version.prefixes,
        elsewhere=ChainMap(*map(_spelled, nearest)),
    )


@cache
def _spelled(version: Version) -> dict[str, Flag]:
    return _first(_flags_by_version(version.dialect)[version.name], lambda flag: flag.spellings)


def _first(flags: Iterable[Flag], keys: Callable[[Flag], tuple[str, ...]]) -> dict[str, Flag]:
    first: dict[str, Flag] = {}
    for flag in flags:
        for key in keys(flag):
            first.setdefault(key, flag)
    return first


@cache
def _flags_by_version(dialect: Dialect) -> Mapping[str, list[Flag]]:
    flags: dict[str, list[Flag]] = {version.name: [] for version in VERSIONS}
    for row in read_rows(dialect):
        for name in row.versions:
            flags[name].append(row.flag)
    return flags


class FlagRow(NamedTuple):
    """A flag, and the names of the versions in which it is so."""

    flag: Flag
    versions: tuple[str, ...]


def file_of(dialect: Dialect) -> str:
    """Return the name of a dialect's file in tables/."""
    return f"{dialect}_flags.tsv"


def read_rows(dialect: Dialect) -> Iterator[FlagRow]:
    """Yield the rows of a dialect's file; flags of one name follow each other as their parser defines them."""
    return map(read_row, table_lines(file_of(dialect))[1:])


def read_row(line: str) -> FlagRow:
    """Read a line."""
    name, spellings, kind, *values, versions = line.split("\t")
    nargs, given, choices, default = (json.loads(value) if value else None for value in values)
    flag = Flag(name, tuple(spellings.split(" ")), cast("Kind", kind), default, given, nargs, tuple(choices or ()))
    return FlagRow(flag, tuple(_names(versions)))


def _names(runs: str) -> Iterator[str]:
    """Yield the names that "a..c e" stands for."""
    for run in runs.split(" "):
        first, _, last = run.partition("..")
        start = _ORDER.index(first)
        yield from _ORDER[start : _ORDER.index(last or first, start) + 1]
