"""Text of a script with the nodes of its grammar: which characters a node holds, and where they are written."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NoReturn

from pretrain.errors import MigrateError
from pretrain.tools.migrate.shell.spans import HOLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.tools.migrate.setting import Place
    from pretrain.tools.migrate.shell.spans import Written
    from pretrain.tools.migrate.shell.syntax.shfmt import Json
    from pretrain.tools.migrate.shell.syntax.tree import Statements

_EXPANSIONS = {"CmdSubst", "ArithmExp", "DblQuoted", "SglQuoted", "ProcSubst", "ExtGlob"}


class Located:
    """Turns nodes of the grammar into syntax trees."""

    def __init__(self, written: Written) -> None:
        """Prepare it for a text; nodes count its bytes, and everything here counts its characters."""
        self.written, self.text = written, written.text
        self._positions: list[int] | None = None
        if not self.text.isascii():
            lengths = [len(sign.encode("utf-8", errors="replace")) for sign in self.text]
            self._positions = [
                position for position, length in enumerate([*lengths, 1]) for _ in range(length)
            ]  # fmt: skip

    def position(self, byte: int) -> int:
        """Return the character that a byte begins."""
        return byte if self._positions is None else self._positions[byte]

    def at(self, node: Json, name: str = "Pos") -> int:
        """Return one of a node's positions."""
        return self.position(node[name]["Offset"])

    def source(self, node: Json) -> str:
        """Return a node as the script writes it."""
        return self.shown(self.at(node), self.at(node, "End"))

    def shown(self, start: int, end: int) -> str:
        """Return what stands between two positions as the script writes it, with "..." for what is unknown."""
        text = self.text[start:end]
        if HOLE not in text:
            return text
        return "".join(self._sign(position) for position in range(start, min(end, len(self.text))))

    def _sign(self, position: int) -> str:
        hole = self.written.hole(position)
        return self.text[position] if hole is None else hole.why if hole.why.startswith("<") else "..."

    def place(self, position: int) -> Place:
        """Return where a character was written."""
        return self.written.place(position)

    def refuse(self, start: int, wrong: str = "is not understood") -> NoReturn:
        """Raise the error of a text that is no shell script, or of a form that is not read."""
        place = self.place(min(start, max(len(self.text) - 1, 0)))
        shown = self.shown(start, start + 60).split("\n")[0] or "the end of the text"
        msg = f"{place}: {shown!r} {wrong}."
        msg += f"\nA script that bash can run is read.\nCheck it with: bash -n {place.source}"
        raise MigrateError(msg)

    def position_of(self, line: int, column: int) -> int:
        """Return the position of a line from 1 and a column in bytes from 1."""
        lines = self.text.encode("utf-8", errors="replace").split(b"\n")
        start = sum(len(before) + 1 for before in itertools.islice(lines, line - 1))
        last = len(self.text) if self._positions is None else len(self._positions) - 1
        return self.position(min(start + column - 1, last))

    def statements(self, nodes: list[Json]) -> Statements:
        """Return the trees of statements; a grammar provides it."""
        raise NotImplementedError(nodes)

    def inner(self, written: Written) -> Statements:
        """Return the statements of another text; a grammar provides it."""
        raise NotImplementedError(written)


def expansions(node: object) -> Iterator[Json]:
    """Yield the outermost quotes and expansions within a node, in their order."""
    found = sorted(_expansions(node), key=lambda part: part["Pos"]["Offset"])
    yield from found


def _expansions(node: object) -> Iterator[Json]:
    if isinstance(node, list):
        for part in node:
            yield from _expansions(part)
    elif isinstance(node, dict):
        if node.get("Type") in _EXPANSIONS or (node.get("Type") == "ParamExp" and "Dollar" in node):
            yield node
        else:
            for part in node.values():
                yield from _expansions(part)


def comments(node: Json) -> Iterator[Json]:
    """Yield all comments within a node."""
    rest: list[object] = [node]
    while rest:
        found = rest.pop()
        if isinstance(found, dict) and "Hash" in found:
            yield found
        elif isinstance(found, dict):
            rest += found.values()
        elif isinstance(found, list):
            rest += found
