"""Lines of a script on which the words of a command are written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.tools.migrate.setting import SourceLine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pretrain.tools.migrate.cell.namespaces import CellRecord


class Places:
    """Finds a flag by searching for it: bash itself tells the line of the command alone."""

    def __init__(self, name: str, text: str, called: str, records: Iterable[CellRecord]) -> None:
        """Keep the texts of a script, and of those that it sources."""
        self._names = {called: name}
        self._lines: dict[str, Sequence[str]] = {name: text.split("\n")}
        for record in records:
            for source in (record.source, *(record.words[:1] if record.kind == "sourced" else ())):
                path = Path(record.folder) / source
                if source and source not in self._names and path.is_file():
                    self._names[source] = source.removeprefix("./")
                    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
                    self._lines[self._names[source]] = lines

    def of(self, record: CellRecord) -> SourceLine:
        """Return the place of a command."""
        return SourceLine(self._names.get(record.source, next(iter(self._lines))), record.line)

    def line(self, place: SourceLine) -> str:
        """Return the text of a line; empty if it is not known."""
        lines = self._lines.get(place.source, ())
        return lines[place.line - 1] if 0 < place.line <= len(lines) else ""

    def of_words(self, words: Sequence[str], command: SourceLine) -> list[SourceLine]:
        """Return the place of each word; a value stands with its flag."""
        found, last = [], command
        for word in words:
            if word.startswith("-") and not word.lstrip("-")[:1].isdigit():
                last = self._of_flag(word.partition("=")[0], command)
            found.append(last)
        return found

    def _of_flag(self, flag: str, command: SourceLine) -> SourceLine:
        pattern = re.compile(rf"^(?!\s*#).*(?<![\w-]){re.escape(flag)}(?![\w-])")
        found = [
            SourceLine(source, number)
            for source, lines in self._lines.items()
            for number, line in enumerate(lines, 1)
            if pattern.search(line)
        ]
        own = [place for place in found if place.source == command.source]
        after = [place for place in own if command.line <= place.line <= self._end(command)]
        before = [place for place in own if place.line < command.line]
        return next(iter((*after, *before[::-1], *own, *found)), command)

    def _end(self, command: SourceLine) -> int:
        number = command.line
        while self.line(SourceLine(command.source, number)).rstrip().endswith("\\"):
            number += 1
        return number
