"""Simple commands, assignments and redirections, as syntax trees."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.tools.migrate.shell.spans import Text
from pretrain.tools.migrate.shell.syntax.characters import DOCUMENT, INDENTED
from pretrain.tools.migrate.shell.syntax.tree import Assignment, Element, Literal, Redirect, Simple, WordNode
from pretrain.tools.migrate.shell.syntax.variables import ParameterWords

if TYPE_CHECKING:
    from pretrain.tools.migrate.shell.syntax.shfmt import Json
    from pretrain.tools.migrate.shell.syntax.tree import Parts

DECLARATIONS = {"export", "declare", "typeset", "local", "readonly"}
"""Builtins whose arguments are assignments."""

_ASSIGNED = re.compile(r"[A-Za-z_]\w*(?=\+?=)", re.ASCII)


class SimpleCommands(ParameterWords):
    """Reads simple commands."""

    def call(self, node: Json) -> Simple:
        """Return a program, a builtin or a function with its words."""
        assignments = tuple(self.assignment(part) for part in node.get("Assigns", []))
        words: list[WordNode | Assignment] = []
        for part in node.get("Args", []):
            first = words[0] if words else None
            declares = isinstance(first, WordNode) and first.written in DECLARATIONS
            assigned = _ASSIGNED.match(self.source(part)) if declares else None
            words.append(self._assigned_word(part, assigned[0]) if assigned else self.word(part))
        return Simple(assignments, tuple(words), self.place(self.at(node)))

    def declaration(self, node: Json) -> Simple:
        """Return export, declare and the like."""
        words: list[WordNode | Assignment] = [self._name(node["Variant"])]
        for part in node.get("Args", []):
            is_word = part.get("Naked") or "Name" not in part
            words.append(self.between(part, self.at(part), self.at(part, "End")) if is_word else self.assignment(part))
        return Simple((), tuple(words), self.place(self.at(node)))

    def let(self, node: Json) -> Simple:
        """Return `let`, whose expressions are words."""
        start = self.at(node)
        name = self.between(None, start, start + len("let"))
        found = (self.between(part, self.at(part), self.at(part, "End")) for part in node["Exprs"])
        return Simple((), (name, *found), self.place(start))

    def _name(self, node: Json) -> WordNode:
        return self.between(None, self.at(node), self.at(node, "End"))

    def _assigned_word(self, node: Json, name: str) -> Assignment:
        """Return an argument of `A=1 export NAME=value`, where the grammar sees words."""
        start, end = self.at(node), self.at(node, "End")
        equals = self.text.index("=", start)
        value = self.between(node, equals + 1, end)
        return Assignment(name, self.place(start), self.source(node), value, None, self.text[equals - 1] == "+")

    def assignment(self, node: Json) -> Assignment:
        """Return NAME=value, NAME+=value, NAME[index]=value or NAME=(values)."""
        start, name = self.at(node), node.get("Name", {}).get("Value", "")
        after = self.at(node["Name"], "End")
        index: Parts | str | None = None
        if "Index" in node:
            index, after = self.index(node["Index"], after)
        appends = bool(node.get("Append"))
        after += 2 if appends else 1
        if self.text[after - 1 : after] != "=" or isinstance(index, str):
            self.refuse(start)
        value = self._array(node["Array"]) if "Array" in node else self._value(node, after)
        return Assignment(name, self.place(start), self.source(node), value, index, appends)

    def _value(self, node: Json, start: int) -> WordNode:
        return self.between(node.get("Value"), start, self.at(node, "End"))

    def _array(self, node: Json) -> tuple[Element, ...]:
        return tuple(self._element(part) for part in node.get("Elems", []))

    def _element(self, node: Json) -> Element:
        if "Index" not in node:
            return Element(self.word(node["Value"]))
        bracket = self.text.rindex("[", 0, self.at(node["Index"]) + 1)
        index, after = self.index(node["Index"], bracket)
        if isinstance(index, str) or self.text[after : after + 1] != "=":
            self.refuse(bracket)
        value = node.get("Value")
        end = self.at(value, "End") if value else after + 1
        return Element(self.between(value, after + 1, end), index)

    def redirect(self, node: Json) -> Redirect:
        """Return a redirection with its target, or its here-document."""
        operator = self.text[self.at(node, "OpPos") :][: len(node["Op"])]
        target = self._document(node) if operator in {"<<", "<<-"} else self.word(node["Word"])
        descriptor = node.get("N", {}).get("Value", "")
        if operator != node["Op"]:
            self.refuse(self.at(node))
        return Redirect(operator, descriptor, target, self.place(self.at(node)))

    def _document(self, node: Json) -> WordNode:
        written = self.source(node["Word"])
        is_raw, strips = any(sign in written for sign in "'\"\\"), node["Op"] == "<<-"
        delimiter = re.sub(r"['\"]|\\(?=.)", "", written)
        if "Hdoc" not in node:
            return WordNode((), self.place(self.at(node)), delimiter)
        start, end = self._bounds(node["Hdoc"], delimiter)
        place = self.place(start)
        if is_raw:
            return WordNode((Literal(self._lines(start, end, strips=strips), quoted=True),), place, delimiter)
        context = INDENTED if strips else DOCUMENT
        return WordNode(self.parts(node["Hdoc"], start, end, context), place, delimiter)

    def _bounds(self, node: Json, delimiter: str) -> tuple[int, int]:
        start, end = self.at(node), self.at(node, "End")
        last = self.text.rfind("\n", start, end) + 1 or start
        if self.text[last:end].lstrip("\t") != delimiter or self.text[start - 1] != "\n":
            self.refuse(start)
        return start, last

    def _lines(self, start: int, end: int, *, strips: bool) -> Text:
        if not strips:
            return self.written.between(start, end)
        found = Text()
        while start < end:
            after = self.text.find("\n", start, end) + 1 or end
            tabs = after - start - len(self.text[start:after].lstrip("\t"))
            found += self.written.between(start + tabs, after)
            start = after
        return found
