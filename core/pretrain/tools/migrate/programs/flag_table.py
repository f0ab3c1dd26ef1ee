"""Tables of flags: files of tab-separated columns, one line for a flag and the versions that have it so."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pretrain.tools.migrate.programs.program import Flag
from pretrain.tools.migrate.programs.versions import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretrain.tools.migrate.programs.program import Dialect, Kind

COLUMNS = ("name", "spellings", "kind", "nargs", "given", "choices", "default", "versions")
_ORDER = [version.name for version in VERSIONS]


class Row(NamedTuple):
    """A flag, and the versions whose parsers define it so.

    Attributes:
        flag: the definition.
        versions: their names.
    """

    flag: Flag
    versions: tuple[str, ...]


def file_of(dialect: Dialect) -> str:
    """Return the name of a dialect's file in this package."""
    return f"{dialect}_flags.tsv"


def read_rows(dialect: Dialect) -> Iterator[Row]:
    """Yield the rows of a dialect's file; flags of one name follow each other as their parser defines them."""
    text = resources.files("pretrain.tools.migrate.programs").joinpath(file_of(dialect)).read_text(encoding="utf-8")
    return map(read_row, text.splitlines()[1:])


def read_row(line: str) -> Row:
    """Read a line."""
    cells = dict(zip(COLUMNS, line.split("\t"), strict=True))
    flag = Flag(
        name=cells["name"],
        spellings=tuple(cells["spellings"].split(" ")),
        kind=cast("Kind", cells["kind"]),
        default=_value(cells, "default"),
        given=_value(cells, "given"),
        nargs=_value(cells, "nargs"),
        choices=tuple(_value(cells, "choices") or ()),
    )
    return Row(flag, tuple(_names(cells["versions"])))


def written_row(row: Row) -> str:
    """Write a line, without its end."""
    flag = row.flag
    values = (flag.nargs, flag.given, list(flag.choices) or None, flag.default)
    return "\t".join((flag.name, " ".join(flag.spellings), flag.kind, *map(_written, values), _runs(row.versions)))


def _value(cells: Mapping[str, str], column: str) -> Any:
    return json.loads(cells[column]) if cells[column] else None


def _written(value: Any) -> str:
    return "" if value is None else json.dumps(value)


def _names(runs: str) -> Iterator[str]:
    """Yield the names that "a..c e" stands for."""
    for run in runs.split(" "):
        first, _, last = run.partition("..")
        start = _ORDER.index(first)
        yield from _ORDER[start : _ORDER.index(last or first, start) + 1]


def _runs(names: tuple[str, ...]) -> str:
    """Write names as runs of the order of all versions: "a..c e"."""
    runs: list[list[int]] = []
    for place in sorted(map(_ORDER.index, names)):
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return " ".join(_ORDER[run[0]] + (f"..{_ORDER[run[-1]]}" if len(run) > 1 else "") for run in runs)
