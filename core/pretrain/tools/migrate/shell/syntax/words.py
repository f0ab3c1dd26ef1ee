"""Words of shell scripts: quotes and expansions, as syntax trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.setting import Asked
from pretrain.tools.migrate.shell.spans import Written, known
from pretrain.tools.migrate.shell.syntax.characters import (
    DOCUMENT,
    PLAIN,
    QUOTED,
    ansi,
    characters,
    without_escapes,
)
from pretrain.tools.migrate.shell.syntax.located import Located, expansions
from pretrain.tools.migrate.shell.syntax.tree import Arithmetic, Literal, Quotes, Substitution, Unknown, WordNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pretrain.tools.migrate.shell.syntax.characters import (
        Context,
    )
    from pretrain.tools.migrate.shell.syntax.shfmt import Json
    from pretrain.tools.migrate.shell.syntax.tree import Part, Parts, Statements


class Words(Located):
    """Reads words; parameters are read in a class of their own."""

    def word(self, node: Json) -> WordNode:
        """Return a word outside of quotes."""
        return self.between(node, self.at(node), self.at(node, "End"))

    def between(self, node: object, start: int, end: int) -> WordNode:
        """Return the word between two positions, whose expansions are in a node."""
        return WordNode(self.parts(node, start, end, PLAIN), self.place(start), self.shown(start, end))

    def parts(self, node: object, start: int, end: int, context: Context) -> Parts:
        """Return the characters between two positions, and the expansions there, which are in a node.

        The text is taken from the script, because the grammar's own literals leave characters out.
        """
        return tuple(self._parts(expansions(node), start, end, context))

    def _parts(self, found: Iterable[Json], start: int, end: int, context: Context) -> Iterator[Part]:
        for expansion in found:
            yield from characters(self.written, start, self.at(expansion), context)
            yield from self._expansion(expansion, context)
            start = self.at(expansion, "End")
        if start > end:
            self.refuse(end)
        yield from characters(self.written, start, end, context)

    def _expansion(self, node: Json, context: Context) -> Iterator[Part]:
        if node["Type"] in {"SglQuoted", "DblQuoted"}:
            yield from self._quotes(node, context)
            return
        forms: dict[str, Callable[[Json, Context], Part]] = {
            "ParamExp": self.parameter, "CmdSubst": self._substitution, "ArithmExp": self._arithmetic,
            "ProcSubst": self._unknown, "ExtGlob": self._unknown,
        }  # fmt: skip
        yield forms[node["Type"]](node, context)

    def parameter(self, node: Json, context: Context) -> Part:
        """Return $NAME or ${NAME...}."""
        raise NotImplementedError(node, context)

    def _unknown(self, node: Json, _context: Context) -> Unknown:
        written = self.source(node)
        return Unknown(Asked(written, self.place(self.at(node)), written))

    def _quotes(self, node: Json, context: Context) -> Iterator[Part]:
        start, end = self.at(node), self.at(node, "Right")
        has_dollar = node.get("Dollar", False)
        if node["Type"] == "SglQuoted":
            yield from self._single_quoted(node, start, end, context)
            return
        first = start + 1 + has_dollar
        if context != DOCUMENT:
            yield Quotes(self.parts(node.get("Parts"), first, end, QUOTED), self.place(start))
            return
        yield from characters(self.written, start, first, context)
        yield from self.parts(node.get("Parts"), first, end, context)
        yield from characters(self.written, end, end + 1, context)

    def _single_quoted(self, node: Json, start: int, end: int, context: Context) -> Iterator[Part]:
        if context.is_quoted:  # they are characters there, which the grammar does not know
            if any(sign in self.text[start:end] for sign in '$`"\\{}'):
                self.refuse(start, "is not read")
            yield from characters(self.written, start, end + 1, context)
        elif not node.get("Dollar"):
            yield Literal(self.written.between(start + 1, end), quoted=True)
        else:
            text = ansi(self.text[start + 2 : end])
            if text is None:
                self.refuse(start, "is not read")
            yield Literal(known(text, self.place(start)), quoted=True)

    def _substitution(self, node: Json, context: Context) -> Substitution:
        start, written = self.at(node), self.source(node)
        if node.get("TempFile") or node.get("ReplyVar"):
            self.refuse(start, "is not read")
        if node.get("Backquotes"):
            body = self._backquoted(start + 1, self.at(node, "Right"), node, context)
        else:
            body = self.statements(node.get("Stmts", []))
        return Substitution(body, self.place(start), written)

    def _backquoted(self, start: int, end: int, node: Json, context: Context) -> Statements:
        """Return statements in backquotes; with backslashes the positions of their nodes are not in this text."""
        if "\\" not in self.text[start:end] and not context.strips:
            return self.statements(node.get("Stmts", []))
        text = without_escapes(self.written, start, end, is_quoted=context.is_quoted)
        return self.inner(Written(text.spans, self.place(start - 1)))

    def _arithmetic(self, node: Json, _context: Context) -> Arithmetic:
        start = self.at(node)
        return self.calculation(node, start + (2 if node.get("Bracket") else 3), self.at(node, "Right"))

    def calculation(self, node: Json, first: int, end: int) -> Arithmetic:
        """Return what brackets hold whose first character stands at `first`."""
        return Arithmetic(self.parts(node.get("X"), first, end, DOCUMENT), self.place(self.at(node)), self.source(node))
