"""Tests of the shell that reading a script can answer: [ -z "$NODES" ], [[ $A == b* ]]."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.tools.migrate.shell.syntax.tree import WordNode
from pretrain.tools.migrate.shell.values.arithmetic import UnresolvedError
from pretrain.tools.migrate.shell.values.globs import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.tools.migrate.shell.spans import Text
    from pretrain.tools.migrate.shell.syntax.tree import Test
    from pretrain.tools.migrate.shell.values.expansion import Expansion, Field

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip
_BINARY = {*_NUMBERS, "=", "==", "!=", "<", ">", "-nt", "-ot", "-ef"}
_UNARY = re.compile(r"-[a-zA-Z]")
_INTEGER = re.compile(r"[ \t]*[-+]?[0-9]+[ \t]*")


def both(first: bool | None, second: bool | None) -> bool | None:
    """Return whether both hold."""
    if first is False or second is False:
        return False
    return None if first is None or second is None else True


def opposite(value: bool | None) -> bool | None:
    """Return whether it does not hold."""
    return None if value is None else not value


def _either(first: bool | None, second: bool | None) -> bool | None:
    return opposite(both(opposite(first), opposite(second)))


def test_holds(fields: Sequence[Field]) -> bool | None:
    """Return what the builtin `test` says of its arguments; None where only running it tells."""
    if not all(field.is_one for field in fields):
        return None
    return _of_few([field.text for field in fields])


def _of_few(texts: Sequence[Text]) -> bool | None:  # noqa: PLR0911  one for each form
    """Decide by the number of arguments, as POSIX does."""
    first = texts[0].text if texts else ""
    if any(not text.is_known for text in texts) and not _has_plain_operators(texts):
        return None
    if len(texts) <= 1:
        return bool(first)
    if len(texts) == 3 and texts[1].text in _BINARY | {"-a", "-o"}:
        return _binary(texts[0], texts[1].text, texts[2])
    if first == "!" and len(texts) <= 4:
        return opposite(_of_few(texts[1:]))
    if len(texts) == 2:
        return _unary(first, texts[1]) if _UNARY.fullmatch(first) else None
    if first == "(" and texts[-1].text == ")" and len(texts) <= 4:
        return _of_few(texts[1:-1])
    return _of_many(list(texts)) if len(texts) >= 4 else None


def _has_plain_operators(texts: Sequence[Text]) -> bool:
    """Say whether an unknown text cannot be mistaken for an operator: NAME = x, -n NAME, joined by -a and -o."""
    shape = "".join(
        "u" if not text.is_known else text.text if text.text in {"-a", "-o", "!"} else "." for text in texts
    )
    return re.fullmatch(r"(?:!?\.[u.](?:[u.])?|!?u\.[u.])(?:-[ao](?:!?\.[u.][u.]?|!?u\.[u.]))*", shape) is not None


def _of_many(texts: list[Text]) -> bool | None:
    """Return the value of tests joined by -o and -a, which binds closer."""
    known = [text.text if text.is_known else "" for text in texts]
    if "(" in known or ")" in known:
        return None
    for operator, join in (("-o", _either), ("-a", both)):
        if operator in known[1:-1]:
            at = known.index(operator, 1)
            return join(_of_few(texts[:at]), _of_many(texts[at + 1 :]))
    return _of_few(texts) if len(texts) <= 3 else None


def _unary(operator: str, text: Text) -> bool | None:
    if operator not in {"-z", "-n"} or (not text.is_known and not text.text):
        return None
    return (operator == "-z") != bool(text.text)


def _binary(left: Text, operator: str, right: Text) -> bool | None:
    if operator in {"-a", "-o"}:
        join = both if operator == "-a" else _either
        return join(_of_few([left]), _of_few([right]))
    if not left.is_known or not right.is_known:
        return None
    if operator in {"=", "==", "!="}:
        return (left.text == right.text) == (operator != "!=")
    numbers = [text.text for text in (left, right)]
    if operator not in _NUMBERS or not all(_INTEGER.fullmatch(number) for number in numbers):
        return None
    first, second = (int(number) for number in numbers)
    return _NUMBERS[operator](first, second) if max(abs(first), abs(second)) < 2**63 else None


def holds(test: Test, expansion: Expansion) -> bool | None:  # noqa: PLR0911  one for each form
    """Return whether [[ ... ]] holds; None where only running the script tells."""
    operator, operands = test.operator, test.operands
    if operator == "!":
        return opposite(_operand(operands[0], expansion))
    if operator in {"&&", "||"}:
        return _in_order(operands, expansion, stops=operator == "||")
    words = [operand for operand in operands if isinstance(operand, WordNode)]
    if not words:
        return _operand(operands[0], expansion)
    if operator in {"=", "==", "!="}:
        return _matches(expansion.single(words[0].parts), words[1], expansion, equal=operator != "!=")
    values = [expansion.single(word.parts) for word in words]
    if operator == "=~":
        expansion.state.forget("BASH_REMATCH", "=~")
        return None
    if operator in _NUMBERS:
        return _of_numbers(operator, values, words, expansion)
    if len(values) == 2:
        return None
    return _unary(operator or "-n", values[0])


def _operand(operand: Test | WordNode, expansion: Expansion) -> bool | None:
    return None if isinstance(operand, WordNode) else holds(operand, expansion)


def _in_order(operands: Sequence[Test | WordNode], expansion: Expansion, *, stops: bool) -> bool | None:
    """Return what && or || says; after one that decides, the others are not looked at."""
    found: bool | None = not stops
    for operand in operands:
        before = expansion.state.copy() if found is None else None
        value = _operand(operand, expansion)
        if before is not None and not before.same(expansion.state):  # it may not have been looked at
            expansion.state.forget_all("a test that may not be reached changes variables")
        found = _either(found, value) if stops else both(found, value)
        if found is stops:
            break
    return found


def _matches(text: Text, word: WordNode, expansion: Expansion, *, equal: bool) -> bool | None:
    signs, pattern = expansion.signs(word.parts)
    if not text.is_known or not pattern.is_known:
        return None
    expansion.state.budget.spend(word.place, characters=len(text.text) * (len(signs) + 1) // 8)
    try:
        return Pattern(signs).matches(text.text) == equal
    except UnresolvedError:
        return None


def _of_numbers(operator: str, values: Sequence[Text], words: Sequence[WordNode], expansion: Expansion) -> bool | None:
    try:
        first, second = (
            expansion.parameters.number(value, word.place) for value, word in zip(values, words, strict=True)
        )
    except UnresolvedError:
        return None
    return _NUMBERS[operator](first, second)


def choice(text: Text, words: Sequence[WordNode], expansion: Expansion) -> bool | None:
    """Return whether one of a case's patterns matches; None where that is unknown."""
    found: bool | None = False
    for word in words:
        if word.written == "*":
            return True
        found = _either(found, _matches(text, word, expansion, equal=True))
        if found:
            return True
    return found
