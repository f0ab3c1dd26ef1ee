"""Lines of the tables of flags, as extract_flags.py writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pretrain.tools.migrate.programs import VERSIONS

if TYPE_CHECKING:
    from pretrain.tools.migrate.programs import FlagRow

COLUMNS = ("name", "spellings", "kind", "nargs", "given", "choices", "default", "versions")
"""Of the tables: a flag is as its newest version defines it; a default that was another one is a row of its own."""


_ORDER = [version.name for version in VERSIONS]


def written_row(row: FlagRow) -> str:
    """Write a line, without its end."""
    flag = row.flag
    values = (flag.nargs, flag.given, list(flag.choices) or None, flag.default)
    texts = ("" if value is None else json.dumps(value) for value in values)
    return "\t".join((flag.name, " ".join(flag.spellings), flag.kind, *texts, _runs(row.versions)))


def _runs(names: tuple[str, ...]) -> str:
    """Write names as runs of the order of all versions: "a..c e"."""
    runs: list[list[int]] = []
    for place in sorted(map(_ORDER.index, names)):
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return " ".join(_ORDER[run[0]] + (f"..{_ORDER[run[-1]]}" if len(run) > 1 else "") for run in runs)
