"""Arithmetic of the shell: 64-bit integers, assignments, and variables without a dollar."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.tools.migrate.setting import Asked

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d[\w#@]*)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign><<=|>>=|\*\*|\+\+|--|&&|\|\||<<|>>|[<>=!]=|[-+*/%&|^]=|[-+*/%&|^<>=!~?:,()]))",
    re.ASCII,
)
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"))
_BINARY_LEVELS = (*_LEVELS, ("+", "-"), ("*", "/", "%"), ("**",))
_DEEPEST = 40


class UnresolvedError(Exception):
    """A value that reading does not tell.

    Attributes:
        asked: the values that would tell it; empty where the form is not understood.
    """

    def __init__(self, asked: tuple[Asked, ...] = ()) -> None:
        """Keep what would tell it."""
        super().__init__()
        self.asked = asked


def wrapped(value: int) -> int:
    """Return an integer as 64 bits hold it."""
    return (value + 2**63) % 2**64 - 2**63


def _divided(a: int, b: int) -> int:
    if not b or (b == -1 and a == -(2**63)):
        raise UnresolvedError
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _shift(by: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def shifted(a: int, b: int) -> int:
        if not 0 <= b < 64:
            raise UnresolvedError
        return by(a, b)

    return shifted


def _power(a: int, b: int) -> int:
    if b < 0:
        raise UnresolvedError
    return pow(a, b, 2**64)


_BINARY: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divided, "**": _power,
    "%": lambda a, b: a - b * _divided(a, b),
    "<<": _shift(operator.lshift), ">>": _shift(operator.rshift),
    "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<": lambda a, b: int(a < b), "<=": lambda a, b: int(a <= b), ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b), "==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b),
}  # fmt: skip
_UNARY: dict[str, Callable[[int], int]] = {
    "-": operator.neg, "+": int, "!": lambda a: int(not a), "~": operator.invert,
}  # fmt: skip
_ASSIGNS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}


def assigned_names(expression: str) -> list[str]:
    """Return the variables that an expression might assign, without evaluating it."""
    if not re.search(r"(?<![=!<>])=(?!=)|<<=|>>=|\+\+|--", expression):
        return []
    return re.findall(r"[A-Za-z_]\w*", expression, re.ASCII)


class Evaluation:
    """The evaluation of one expression; parts that are not reached assign nothing."""

    def __init__(self, expression: str, get: Callable[[str], int], put: Callable[[str, int], None]) -> None:
        """Split it.

        Args:
            expression: with its expansions done.
            get: reads a variable.
            put: assigns one.

        Raises:
            UnresolvedError: it has a sign that is not understood.
        """
        self._tokens: list[str] = []
        self._get, self._put, self._at, self._depth, self._dry = get, put, 0, 0, 0
        position, expression = 0, expression.rstrip()
        while position < len(expression):
            token = _TOKEN.match(expression, position)
            if token is None:
                raise UnresolvedError
            self._tokens.append(token[0].strip())
            position = token.end()

    def value(self) -> int:
        """Return the value; that of an empty expression is 0.

        Raises:
            UnresolvedError: it is no expression, divides by zero, or reads what is not known.
        """
        if not self._tokens:
            return 0
        found = self._sequence()
        if self._at < len(self._tokens):
            raise UnresolvedError
        return found

    def _take(self, *signs: str) -> str:
        token = self._tokens[self._at] if self._at < len(self._tokens) else ""
        if token and token in signs:
            self._at += 1
            return token
        return ""

    def _sequence(self) -> int:
        found = self._assignment()
        while self._take(","):
            found = self._assignment()
        return found

    def _assignment(self) -> int:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnresolvedError
        name = self._tokens[self._at] if self._at < len(self._tokens) else ""
        following = self._tokens[self._at + 1] if self._at + 1 < len(self._tokens) else ""
        if re.match(r"[A-Za-z_]", name) and following in _ASSIGNS:
            self._at += 2
            value = self._assignment()
            if following != "=":
                value = self._applied(following[:-1], self._read(name), value)
            found = self._write(name, value)
        else:
            found = self._choice()
        self._depth -= 1
        return found

    def _choice(self) -> int:
        condition = self._binary(0)
        if not self._take("?"):
            return condition
        first = self._unless(not condition, self._sequence)
        if not self._take(":"):
            raise UnresolvedError
        second = self._unless(bool(condition), self._assignment)
        return first if condition else second

    def _unless(self, skipped: bool, part: Callable[[], int]) -> int:
        self._dry += skipped
        found = part()
        self._dry -= skipped
        return found

    def _binary(self, level: int) -> int:
        if level == len(_BINARY_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while sign := self._take(*_BINARY_LEVELS[level]):
            if sign in {"&&", "||"}:
                decided = bool(left) == (sign == "||")
                right = self._unless(decided, lambda: self._binary(level + 1))
                left = int(bool(left)) if decided else int(bool(right))
            else:
                right = self._binary(level if sign == "**" else level + 1)
                left = self._applied(sign, left, right)
        return left

    def _applied(self, sign: str, left: int, right: int) -> int:
        return 0 if self._dry else wrapped(_BINARY[sign](left, right))

    def _unary(self) -> int:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnresolvedError
        if sign := self._take("++", "--"):
            name = self._tokens[self._at] if self._at < len(self._tokens) else ""
            if not re.match(r"[A-Za-z_]", name):
                raise UnresolvedError
            self._at += 1
            found = self._write(name, self._applied(sign[0], self._read(name), 1))
        elif sign := self._take(*_UNARY):
            found = wrapped(_UNARY[sign](self._unary()))
        else:
            found = self._operand()
        self._depth -= 1
        return found

    def _operand(self) -> int:
        token = self._tokens[self._at] if self._at < len(self._tokens) else ""
        self._at += 1
        if token == "(":  # noqa: S105  a bracket
            found = self._sequence()
            if not self._take(")"):
                raise UnresolvedError
            return found
        if token[:1].isdigit():
            return number(token)
        if not re.match(r"[A-Za-z_]", token):
            raise UnresolvedError
        found = self._read(token)
        if sign := self._take("++", "--"):
            self._write(token, self._applied(sign[0], found, 1))
        return found

    def _read(self, name: str) -> int:
        return 0 if self._dry else self._get(name)

    def _write(self, name: str, value: int) -> int:
        if not self._dry:
            self._put(name, value)
        return value


def number(text: str) -> int:
    """Return an integer as bash writes it: decimal, 0x1f, octal 017, or 2#101.

    Raises:
        UnresolvedError: it is none.
    """
    found = re.fullmatch(r"(?:(\d+)#|(0[xX])|(0)(?=\d))?([0-9a-zA-Z]+)", text)
    if found is None:
        raise UnresolvedError
    base = int(found[1]) if found[1] else 16 if found[2] else 8 if found[3] else 10
    if not 2 <= base <= 36:
        raise UnresolvedError
    try:
        return wrapped(int(found[4], base))
    except ValueError as error:
        raise UnresolvedError from error
