"""Patterns of the shell: *, ?, [a-z], with parts that quotes make plain."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from pretrain.tools.migrate.shell.values.arithmetic import UnresolvedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Sign: TypeAlias = tuple[str, bool]


class Pattern:
    """A pattern, which matches from a position in one pass over the text."""

    def __init__(self, signs: Sequence[Sign]) -> None:
        """Read it.

        Args:
            signs: its characters, each with whether it is quoted.

        Raises:
            UnresolvedError: it has a form that is not understood.
        """
        self._steps: list[Callable[[str], bool] | None] = []
        at = 0
        while at < len(signs):
            at = self._step(signs, at)

    def _step(self, signs: Sequence[Sign], at: int) -> int:
        sign, quoted = signs[at]
        if not quoted and sign in "?*+@!" and at + 1 < len(signs) and signs[at + 1] == ("(", False):
            raise UnresolvedError
        if sign == "*" and not quoted:
            if not self._steps or self._steps[-1] is not None:
                self._steps.append(None)
            return at + 1
        if sign == "[" and not quoted:
            return self._bracket(signs, at)
        if sign == "\\" and not quoted:  # out of a variable
            raise UnresolvedError
        self._steps.append((lambda _other: True) if sign == "?" and not quoted else sign.__eq__)
        return at + 1

    def _bracket(self, signs: Sequence[Sign], at: int) -> int:
        first = at + 1
        negated = signs[first : first + 1] in ([("!", False)], [("^", False)])
        first += negated
        end = first + 1
        while end < len(signs) and signs[end] != ("]", False):
            end += 1
        if end >= len(signs):
            self._steps.append("[".__eq__)
            return at + 1
        if "[" in [sign for sign, _ in signs[first:end]] or ("\\", False) in signs[first:end]:  # such as [[:alpha:]]
            raise UnresolvedError
        inside = "".join("-" if sign == ("-", False) else re.escape(sign[0]) for sign in signs[first:end])
        try:
            expression = re.compile(f"[{'^' * negated}{inside}]", re.DOTALL)
        except re.error as error:
            raise UnresolvedError from error
        self._steps.append(lambda other: expression.match(other) is not None)
        return end + 1

    def ends(self, text: str, start: int = 0) -> list[int]:
        """Return where matches from `start` may end, in order."""
        active = {0}
        found = []
        for position in range(start, len(text) + 1):
            active = self._with_skipped(active)
            if len(self._steps) in active:
                found.append(position)
            if position == len(text) or not active:
                break
            active = self._after(active, text[position])
        return found

    def _with_skipped(self, active: set[int]) -> set[int]:
        stars = {step + 1 for step in active if step < len(self._steps) and self._steps[step] is None}
        return active | stars

    def _after(self, active: set[int], sign: str) -> set[int]:
        found = set()
        for step in active:
            if step < len(self._steps):
                test = self._steps[step]
                if test is None:
                    found.add(step)
                elif test(sign):
                    found.add(step + 1)
        return found

    def matches(self, text: str) -> bool:
        """Say whether it matches the whole text."""
        return self.ends(text)[-1:] == [len(text)]
