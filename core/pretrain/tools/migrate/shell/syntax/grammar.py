"""Scripts of bash, read into syntax trees; what is not understood is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pretrain.tools.migrate.shell.syntax.compounds import Compounds
from pretrain.tools.migrate.shell.syntax.located import comments
from pretrain.tools.migrate.shell.syntax.placeholders import without_ends_of_comments, without_placeholders
from pretrain.tools.migrate.shell.syntax.shfmt import NotUnderstoodError, nodes_of
from pretrain.tools.migrate.shell.syntax.tree import Background, Chain, Pipeline, Redirected, Simple

if TYPE_CHECKING:
    from pretrain.tools.migrate.shell.spans import Written
    from pretrain.tools.migrate.shell.syntax.shfmt import Json
    from pretrain.tools.migrate.shell.syntax.tree import Node, Statements

_MOST_FREQUENCIES = 20
"""Elements of arrays in one text that look like an index without a value."""
_MOST_TEXTS = 100


class Grammar(Compounds):
    """Reads whole scripts."""

    def __init__(self, written: Written, texts: list[Written] | None = None) -> None:
        """Prepare it for a text, which stands in others, of which each takes a process to read."""
        super().__init__(written)
        self._texts = [] if texts is None else texts

    def whole(self) -> Statements:
        """Return the statements of the text.

        Raises:
            MigrateError: it is no script of bash.
        """
        if "\0" in self.text:
            self.refuse(self.text.index("\0"))
        found = self._nodes()
        for comment in comments(found):  # in long scripts it takes a word's last # for one, as in ${NAME:1}#
            start = self.at(comment, "Hash")
            if start and self.text[start - 1] not in " \t\n;&|()`":
                self.refuse(start, "is not read")
        return self.statements(found.get("Stmts", []))

    def _nodes(self) -> Json:
        text, left = without_ends_of_comments(self.text), _MOST_FREQUENCIES
        while True:
            try:
                return nodes_of(text.encode("utf-8", errors="replace"))
            except NotUnderstoodError as error:
                at = self.position_of(error.line, error.column)
                if not left or "`[x]`" not in error.why or text[at : at + 1] != "[":
                    self.refuse(at, f"is not understood: {error.why}")
                # an element such as [0]*3+[1]*24 is a word to bash; the trees take their characters from self.text
                text, left = f"{text[:at]}.{text[at + 1 :]}", left - 1

    def inner(self, written: Written) -> Statements:
        """Return the statements of another text."""
        self._texts.append(written)
        if len(self._texts) > _MOST_TEXTS:
            self.refuse(0, f"holds more than {_MOST_TEXTS} texts in backquotes")
        return type(self)(written, self._texts).whole()

    def statements(self, nodes: list[Json]) -> Statements:
        """Return the trees of statements."""
        return tuple(self._ended(node) for node in nodes)

    def _ended(self, node: Json) -> Node:
        """Return a statement with the & after it."""
        if node.get("Coprocess") or node.get("Disown"):
            self.refuse(self.at(node), "is not read")
        found = self.statement(node)
        return Background(found, self.place(self.at(node))) if node.get("Background") else found

    def statement(self, node: Json) -> Node:
        """Return a statement with its redirections."""
        place = self.place(self.at(node))
        command = node.get("Cmd")
        if command is not None and command["Type"] == "BinaryCmd" and command["Op"] in {"&&", "||"}:
            return self._chain(node, command)
        elements = list(self._elements(node, command))
        if len(elements) == 1 and not node.get("Negated"):
            return elements[0]
        return Pipeline(tuple(elements), bool(node.get("Negated")), place)

    def _chain(self, node: Json, command: Json) -> Chain:
        """Return pipelines joined by && and ||, which bash follows from the left."""
        others: list[tuple[str, Node]] = []
        first: Json = node
        while (inner := first["Cmd"]) and inner["Type"] == "BinaryCmd" and inner["Op"] in {"&&", "||"}:
            others.append((inner["Op"], self._ended(inner["Y"])))
            first = inner["X"]
            if first.get("Negated") or "Cmd" not in first:
                break
        if node.get("Negated") or node.get("Redirs"):
            self.refuse(self.at(command))
        condition = self.source(command["X"])
        return Chain(self._ended(first), tuple(reversed(others)), self.place(self.at(node)), condition)

    def _elements(self, node: Json, command: Json | None) -> list[Node]:
        """Return the commands of a pipeline."""
        place = self.place(self.at(node))
        if command is None:
            return [self._redirected(Simple((), (), place), node)]
        if command["Type"] == "TimeClause":
            return self._timed(command)
        if command["Type"] == "BinaryCmd":
            if command["Op"] not in {"|", "|&"} or node.get("Redirs"):
                self.refuse(self.at(command))
            left, right = command["X"], command["Y"]
            return [*self._elements(left, left.get("Cmd")), *self._elements(right, right.get("Cmd"))]
        return [self._redirected(self.compound(command), node)]

    def _timed(self, node: Json) -> list[Node]:
        if "Stmt" not in node:
            self.refuse(self.at(node))
        inner = node["Stmt"]
        if inner.get("Negated"):
            self.refuse(self.at(node), "is not read")
        found = self._elements(inner, inner.get("Cmd"))
        if isinstance(found[0], Simple):
            found[0] = replace(found[0], timed=True)
        return found

    def _redirected(self, body: Node, node: Json) -> Node:
        if not node.get("Redirs"):
            return body
        place = self.place(self.at(node))
        if isinstance(body, Simple):  # it begins where its first redirection may
            body = replace(body, place=place)
        return Redirected(body, tuple(self.redirect(part) for part in node["Redirs"]), place)


def parse(written: Written) -> Statements:
    """Return the statements of a text, from a file or out of variables; none of it is run.

    Raises:
        MigrateError: it is no script of bash, or nested too deep.
    """
    reading = Grammar(without_placeholders(written))
    try:
        return reading.whole()
    except RecursionError:
        reading.refuse(0, "is nested too deep")
