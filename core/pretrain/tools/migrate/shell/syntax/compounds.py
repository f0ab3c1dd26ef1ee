"""Compound statements, if, case, loops, groups and tests, as syntax trees."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pretrain.tools.migrate.shell.syntax.bracket_tests import BracketTests
from pretrain.tools.migrate.shell.syntax.characters import DOCUMENT
from pretrain.tools.migrate.shell.syntax.simple import SimpleCommands
from pretrain.tools.migrate.shell.syntax.tree import (
    Arithmetic,
    Calculation,
    Case,
    Choice,
    CountedFor,
    For,
    Function,
    Group,
    If,
    While,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.tools.migrate.shell.syntax.shfmt import Json
    from pretrain.tools.migrate.shell.syntax.tree import Node, Statements


class Compounds(SimpleCommands):
    """Reads compound statements."""

    def statement(self, node: Json) -> Node:
        """Return a statement with its redirections; a grammar provides it."""
        raise NotImplementedError(node)

    def compound(self, node: Json) -> Node:
        """Return a command of any form but lists and pipelines."""
        forms: dict[str, Callable[[Json], Node]] = {
            "CallExpr": self.call, "DeclClause": self.declaration, "LetClause": self.let, "IfClause": self._if,
            "WhileClause": self._while, "ForClause": self._for, "CaseClause": self._case, "Block": self._group,
            "Subshell": self._group, "FuncDecl": self._function, "ArithmCmd": self._calculation,
            "TestClause": lambda test: BracketTests(self).clause(test),
        }  # fmt: skip
        if node["Type"] not in forms:
            self.refuse(self.at(node), "is not read")
        return forms[node["Type"]](node)

    def _calculation(self, node: Json) -> Calculation:
        start = self.at(node)
        if node.get("Unsigned"):
            self.refuse(start)
        return Calculation(self.calculation(node, start + 2, self.at(node, "Right")), self.place(start))

    def _group(self, node: Json) -> Group:
        return Group(self._some(node, "Stmts"), node["Type"] == "Subshell", self.place(self.at(node)))

    def _some(self, node: Json, name: str) -> Statements:
        return self.statements(node[name]) if node.get(name) else self.refuse(self.at(node), "holds no statement")

    def _condition(self, node: Json) -> str:
        """Return the condition of a statement as the script writes it."""
        first, last = node["Cond"][0], node["Cond"][-1]
        return self.shown(self.at(first), self.at(last, "End")).rstrip("; \t\n")

    def _if(self, node: Json) -> If:
        branches: list[tuple[Statements | None, Statements]] = []
        branch: Json | None = node
        while branch is not None:
            condition = self.statements(branch["Cond"]) if branch.get("Cond") else None
            branches.append((condition, self._some(branch, "Then")))
            branch = branch.get("Else")
        return If(tuple(branches), self.place(self.at(node)), self._condition(node))

    def _while(self, node: Json) -> While:
        condition, body = self._some(node, "Cond"), self._some(node, "Do")
        until = bool(node.get("Until"))
        return While(condition, body, until, self.place(self.at(node)), self._condition(node))

    def _for(self, node: Json) -> Node:
        start, loop = self.at(node), node["Loop"]
        if node.get("Select"):
            self.refuse(start, "is not read")
        body = self._some(node, "Do")
        if loop["Type"] == "CStyleLoop":
            return self._counted(loop, body, start)
        words = tuple(self.word(part) for part in loop.get("Items", [])) if "InPos" in loop else None
        return For(loop["Name"]["Value"], words, body, self.place(start), f"for {self.source(loop)}")

    def _counted(self, loop: Json, body: Statements, start: int) -> CountedFor:
        first, last = self.at(loop, "Lparen") + 2, self.at(loop, "Rparen")
        signs = [position for position in range(first, last) if self.text[position] == ";"]
        if len(signs) != 2:
            self.refuse(start)
        bounds = [first - 1, *signs, last]
        found: list[Arithmetic | None] = []
        for (before, after), name in zip(itertools.pairwise(bounds), ("Init", "Cond", "Post"), strict=True):
            written = self.shown(before + 1, after).strip()
            parts = self.parts(loop.get(name), before + 1, after, DOCUMENT)
            found.append(Arithmetic(parts, self.place(before), written) if written else None)
        return CountedFor(found[0], found[1], found[2], body, self.place(start), f"for {self.source(loop)}")

    def _case(self, node: Json) -> Case:
        choices = tuple(self._choice(part) for part in node.get("Items", []))
        word = self.word(node["Word"])
        return Case(word, choices, self.place(self.at(node)), f"case {word.written}")

    def _choice(self, node: Json) -> Choice:
        if node["Op"] not in {";;", ";&", ";;&"}:
            self.refuse(self.at(node))
        patterns = tuple(self.word(part) for part in node["Patterns"])
        return Choice(patterns, self.statements(node.get("Stmts", [])), node["Op"])

    def _function(self, node: Json) -> Function:
        body = node["Body"]
        if body["Cmd"]["Type"] in {"CallExpr", "DeclClause", "LetClause"} or "Name" not in node:
            self.refuse(self.at(node))
        return Function(node["Name"]["Value"], self.statement(body), self.place(self.at(node)))
