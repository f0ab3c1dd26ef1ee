"""Programs whose flags are known, by name."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError, did_you_mean
from pretrain.tools.migrate.programs.flag_table import read_rows
from pretrain.tools.migrate.programs.program import Program
from pretrain.tools.migrate.programs.versions import FAMILIES, VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pretrain.tools.migrate.programs.program import Dialect, Flag
    from pretrain.tools.migrate.programs.versions import Version

_VERSIONS = {version.name: version for version in VERSIONS}


@cache
def programs() -> Mapping[str, Program]:
    """Return all programs by name, as VERSIONS orders them."""
    return MappingProxyType({version.name: _program(version) for version in VERSIONS})


def program(name: str) -> Program:
    """Return a program.

    Args:
        name: of a version, or of a family for its newest version.

    Raises:
        MigrateError: nothing has that name.
    """
    if name in FAMILIES:
        return family_of(name)[-1]
    if name not in _VERSIONS:
        raise MigrateError(_unknown(name))
    return programs()[name]


def family_of(name: str) -> tuple[Program, ...]:
    """Return the versions of a family, the oldest first.

    Args:
        name: of the family, or of one of its versions.
    """
    family = _VERSIONS[name].family if name in _VERSIONS else name
    return tuple(programs()[version.name] for version in VERSIONS if version.family == family)


def version_of(program: Program) -> Version:
    """Return the version that a program is."""
    return _VERSIONS[program.name]


def _program(version: Version) -> Program:
    flags = _flags_by_version(version.dialect).get(version.name, [])
    return Program(
        name=version.name,
        title=version.title,
        dialect=version.dialect,
        flags=_first_by_name(flags),
        spelled={spelling: flag for flag in flags for spelling in flag.spellings},
        refused=version.refused,
        prefixes=version.prefixes,
    )


@cache
def _flags_by_version(dialect: Dialect) -> Mapping[str, list[Flag]]:
    flags: dict[str, list[Flag]] = {}
    for row in read_rows(dialect):
        for name in row.versions:
            flags.setdefault(name, []).append(row.flag)
    return flags


def _first_by_name(flags: Iterable[Flag]) -> dict[str, Flag]:
    first: dict[str, Flag] = {}
    for flag in flags:
        first.setdefault(flag.name, flag)
    return first


def _unknown(name: str) -> str:
    lines = (
        f"--from {name}: no such program.{did_you_mean(name, (*FAMILIES, *_VERSIONS))}",
        f"Programs are {', '.join(FAMILIES)}, each alone or with a version:",
        f"{', '.join(_VERSIONS)}.",
    )
    return "\n".join(lines)
