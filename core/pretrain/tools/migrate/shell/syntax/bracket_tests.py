"""Conditions in [[ ... ]], as syntax trees: && binds closer than ||, and ! closest, as in bash.

The grammar joins them all from the right, so that the order in the text alone is taken from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pretrain.tools.migrate.shell.syntax.tree import Test

if TYPE_CHECKING:
    from pretrain.tools.migrate.shell.syntax.shfmt import Json
    from pretrain.tools.migrate.shell.syntax.tree import WordNode
    from pretrain.tools.migrate.shell.syntax.words import Words

_Piece: TypeAlias = "str | Test"
_COMPARES = {"=", "==", "!=", "=~", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"}


class BracketTests:
    """Reads one condition."""

    def __init__(self, words: Words) -> None:
        """Prepare it with the reader of its words."""
        self._words = words
        self._start = 0

    def clause(self, node: Json) -> Test:
        """Return a condition."""
        self._start = self._words.at(node)
        return self._whole(node["X"])

    def _whole(self, node: Json) -> Test:
        tokens = self._tokens(node)
        found = self._joined(tokens, "||")
        if tokens:
            self._words.refuse(self._start)
        return found

    def _tokens(self, node: Json) -> list[_Piece]:
        """Return operators and single tests in the order of the text."""
        form, operator = node["Type"], node.get("Op", "")
        if form == "BinaryTest" and operator in {"&&", "||"}:
            return [*self._tokens(node["X"]), operator, *self._tokens(node["Y"])]
        if form == "UnaryTest" and operator == "!":
            return ["!", *self._tokens(node["X"])]
        if form == "ParenTest":
            return [self._whole(node["X"])]
        return [self._single(node)]

    def _single(self, node: Json) -> Test:
        place = self._words.place(self._words.at(node))
        if node["Type"] == "Word":
            return Test("", (self._word(node),), place)
        operator = self._words.text[self._words.at(node, "OpPos") :][: len(node["Op"])]
        if operator != node["Op"] and {operator, node["Op"][:1]} != {"="}:
            operator = self._words.text[self._words.at(node, "OpPos") :].split(None, 1)[0]
        if node["Type"] == "UnaryTest" and operator.startswith("-"):
            return Test(operator, (self._word(node["X"]),), place)
        if node["Type"] != "BinaryTest" or operator not in _COMPARES:
            self._words.refuse(self._words.at(node))
        return Test(operator, (self._word(node["X"]), self._word(node["Y"])), place)

    def _word(self, node: Json) -> WordNode:
        if node["Type"] != "Word":
            self._words.refuse(self._words.at(node))
        return self._words.word(node)

    def _joined(self, tokens: list[_Piece], operator: str) -> Test:
        """Take operands with an operator between them from the tokens."""
        operands = [self._operand(tokens, operator)]
        while tokens and tokens[0] == operator:
            del tokens[0]
            operands.append(self._operand(tokens, operator))
        return operands[0] if len(operands) == 1 else Test(operator, tuple(operands), operands[0].place)

    def _operand(self, tokens: list[_Piece], operator: str) -> Test:
        if operator == "||":
            return self._joined(tokens, "&&")
        first = tokens.pop(0)
        if isinstance(first, Test):
            return first
        found = self._operand(tokens, "&&")
        return Test("!", (found,), found.place)
