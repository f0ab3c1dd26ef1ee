"""Programs of a script, as their stubs wrote them down: their arguments, in the order in which they were started."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["run", "sourced", "missing", "unknown", "used", "condition", "files"]


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened.

    Attributes:
        kind: a program that was started, or what the script did with a value that is not known.
        line: of the script's command.
        source: file of that line.
        folder: working directory.
        words: the program and its arguments; of other kinds, a name and the command.
        around: name of the record of the launcher that handed the command to a shell; empty for none.
        around_at: where that shell stands among the launcher's words.
        unknown: program whose output is part of the arguments; empty for none.
        files: content of the JSON files that the arguments name, at that moment.
    """

    kind: Kind
    line: int
    source: str
    folder: str
    words: tuple[str, ...]
    around: str = ""
    around_at: int = 0
    unknown: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


def parse_record(data: bytes) -> Record:
    """Return a record that stub.sh or before.sh wrote."""
    kind, line, source, folder, around, at, unknown, count, *rest = data.decode(errors="replace").split("\0")[:-1]
    words, files = rest[: int(count)], rest[int(count) :]
    return Record(
        cast("Kind", kind),
        int(line),
        source,
        folder,
        tuple(words),
        around,
        int(at),
        unknown,
        dict(zip(files[::2], files[1::2], strict=True)),
    )


def whole_commands(records: Mapping[str, Record]) -> list[tuple[Record, tuple[str, ...]]]:
    """Return every program that was started, with the words of the launchers around it first.

    Args:
        records: by name; names are in the order of time.
    """
    started = (record for _, record in sorted(records.items()) if record.kind == "run")
    return [(record, (*_around(record, records), *record.words)) for record in started]


def _around(record: Record, records: Mapping[str, Record]) -> tuple[str, ...]:
    launcher = records.get(record.around)
    if launcher is None:
        return ()
    return (*_around(launcher, records), *launcher.words[: record.around_at])
