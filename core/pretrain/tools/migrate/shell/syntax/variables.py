"""Expansions of variables, $NAME and ${NAME...}, as syntax trees."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.tools.migrate.setting import Asked
from pretrain.tools.migrate.shell.syntax.characters import DEFAULT, DOCUMENT, PLAIN
from pretrain.tools.migrate.shell.syntax.tree import Parameter, Unknown
from pretrain.tools.migrate.shell.syntax.words import Words

if TYPE_CHECKING:
    from pretrain.tools.migrate.shell.syntax.characters import Context
    from pretrain.tools.migrate.shell.syntax.shfmt import Json
    from pretrain.tools.migrate.shell.syntax.tree import Part, Parts

_NAME = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]", re.ASCII)
_OPERATOR = re.compile(r":[-=?+]|[-=?+]|##?|%%?|/[/#%]?|\^\^?|,,?|@|:")
_READ = {
    *("Type", "Pos", "End", "Dollar", "Rbrace", "Short", "Length", "Param", "Index", "Slice", "Repl", "Exp"),
}


class ParameterWords(Words):
    """Reads words with their parameters."""

    def parameter(self, node: Json, context: Context) -> Part:
        """Return $NAME or ${NAME...}; ${!...}, whose value another variable's value names, is unknown."""
        start, written = self.at(node), self.source(node)
        if node.get("Excl"):
            return Unknown(Asked(written, self.place(start), written))
        name = node.get("Param", {}).get("Value", "")
        if node.keys() - _READ or not _NAME.fullmatch(name):
            self.refuse(start)
        if node.get("Short"):
            return Parameter(name, self.place(start), f"${name}")
        return self._braced(node, name, context)

    def _braced(self, node: Json, name: str, context: Context) -> Parameter:
        start, written, end = self.at(node), self.source(node), self.at(node, "Rbrace")
        after = self.at(node["Param"], "End")
        index: str | Parts | None = None
        if "Index" in node:
            index, after = self.index(node["Index"], after)
        if node.get("Length") and after != end:
            self.refuse(start)
        operator, arguments = self._operation(node, after, end, context)
        operator = "length" if node.get("Length") else operator
        return Parameter(name, self.place(start), written, index, operator, arguments)

    def index(self, node: Json, bracket: int) -> tuple[str | Parts, int]:
        """Return what stands in the square brackets that open at a position, and the position after them."""
        end = self.at(node, "End")
        while self.text[end : end + 1].isspace() or self.text.startswith("\\\n", end):
            end += 1
        if self.text[bracket : bracket + 1] != "[" or self.text[end : end + 1] != "]":
            self.refuse(bracket)
        inside = self.text[bracket + 1 : end]
        return inside if inside in {"@", "*"} else self.parts(node, bracket + 1, end, DOCUMENT), end + 1

    def _operation(self, node: Json, start: int, end: int, context: Context) -> tuple[str, tuple[Parts, ...]]:
        """Read an operator and its words between two positions."""
        found = _OPERATOR.match(self.text, start, end)
        if found is None:
            return ("", ()) if start == end else self.refuse(start)
        operator, first = found[0], found.end()
        form = "Slice" if operator == ":" else "Repl" if operator[0] == "/" else "Exp"
        if form not in node:
            self.refuse(self.at(node))
        if form == "Slice":
            return operator, self._slice(node[form], first, end)
        if form == "Repl":
            return operator, self._replacement(node[form], first, end)
        if operator[-1] in "-=?+":
            return operator, (self.parts(node[form], first, end, DEFAULT if context.is_quoted else PLAIN),)
        return operator, (self.parts(node[form], first, end, PLAIN),)

    def _slice(self, node: Json, first: int, end: int) -> tuple[Parts, ...]:
        offset, length = node.get("Offset"), node.get("Length")
        if length is None:
            return (self.parts(offset, first, end, DOCUMENT),)
        colon = self.text.find(":", self.at(offset, "End") if offset else first, self.at(length))
        if colon < 0:
            self.refuse(first)
        return self.parts(offset, first, colon, DOCUMENT), self.parts(length, colon + 1, end, DOCUMENT)

    def _replacement(self, node: Json, first: int, end: int) -> tuple[Parts, ...]:
        pattern, by = node.get("Orig"), node.get("With")
        slash = self.at(pattern, "End") if pattern else first
        if slash >= end:
            return (self.parts(pattern, first, end, PLAIN),)
        if self.text[slash] != "/":
            self.refuse(first)
        return self.parts(pattern, first, slash, PLAIN), self.parts(by, slash + 1, end, PLAIN)
