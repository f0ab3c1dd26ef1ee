"""Values of $NAME, ${NAME...} and $((...))."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pretrain.tools.migrate.shell.spans import Span, Text, known, unknown
from pretrain.tools.migrate.shell.values.arithmetic import Evaluation, UnresolvedError, assigned_names
from pretrain.tools.migrate.shell.values.globs import Pattern
from pretrain.tools.migrate.shell.values.state import DYNAMIC, Cell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.tools.migrate.setting import Place
    from pretrain.tools.migrate.shell.syntax.tree import Arithmetic, Parameter, Parts
    from pretrain.tools.migrate.shell.values.state import State

_ALWAYS_SET = {
    *[
        "HOME",
        "PWD",
        "OLDPWD",
        "USER",
        "LOGNAME",
        "HOSTNAME",
        "PATH",
        "SHELL",
        "IFS",
        "HOSTTYPE",
        "MACHTYPE",
        "OSTYPE",
        "TERM",
        "BASH",
    ]
} | DYNAMIC
_DEEPEST = 20


class Single(Protocol):
    """Expands a word that is not split."""

    def __call__(self, parts: Parts, *, is_quoted: bool = False) -> Text:
        """Return its value."""


class Parameters:
    """Reads variables in one state, which ${NAME:=value} and $((NAME++)) change."""

    def __init__(
        self, state: State, single: Single, signs: Callable[[Parts], tuple[list[tuple[str, bool]], Text]]
    ) -> None:
        """Prepare it with the expansions of the words that stand inside of ${...}."""
        self.state, self._single, self._signs = state, single, signs
        self._depth = 0

    def alternative(self, part: Parameter) -> Parts | None:
        """Return the word of ${NAME:-word} and ${NAME:+word} where it is the value; None if the variable is.

        A variable of the environment counts as not set here: the script provides for that.
        """
        sign = part.operator[-1:]
        if part.operator == "length" or sign not in {"-", "+", "="}:
            return None
        is_set = self._is_set(part)
        if is_set is None or is_set != (sign == "+"):
            return None
        if sign == "=":
            self._default(part)
            return None
        return part.arguments[0]

    def _default(self, part: Parameter) -> None:
        text = self._single(part.arguments[0])
        if part.index is not None or not part.name.isidentifier():
            self.state.forget(part.name, part.written)
        else:
            self.state.put(part.name, Cell({0: text.named(part.name)}))

    def _is_set(self, part: Parameter) -> bool | None:
        """Say whether ${NAME:-...} finds a value; None where that is unknown."""
        found = self._values(part)
        if found is None and self._is_of_environment(part):
            return False
        if found is None:
            return None
        if len(found) > 1:
            return True
        if not found or (not found[0].text and not found[0].is_known and part.operator.startswith(":")):
            return None if found else False
        return bool(found[0].text) or not part.operator.startswith(":")

    def _is_of_environment(self, part: Parameter) -> bool:
        if part.name.isdecimal() or part.name in "@*":
            return self.state.arguments.offset is not None
        if part.name in _ALWAYS_SET or not part.name.isidentifier():
            return False
        return part.name not in self.state.defined and self.state.cell(part.name) is None

    def _values(self, part: Parameter) -> list[Text] | None:  # noqa: PLR0911  one for each form
        """Return what an expansion names: no, one or several values; None where they are unknown."""
        state, place = self.state, part.place
        if part.name in {"@", "*"}:
            return None if state.arguments.rest else list(state.arguments.known)
        if part.name.isdecimal() and part.name != "0":
            return self._argument(int(part.name))
        if not part.name.isidentifier():
            found = self._special(part.name, place)
            return None if found is None else [found]
        elements = state.elements(part.name, place)
        if elements is None:
            return None
        if any(text.is_many for text in elements.values()) and (part.index not in {"@", "*"} or part.operator):
            return None
        if part.index in {"@", "*"}:
            return [elements[index] for index in sorted(elements)]
        if part.index is None:
            return [elements[0]] if 0 in elements else []
        return self._element(part, dict(elements))

    def _element(self, part: Parameter, elements: dict[int, Text]) -> list[Text] | None:
        assert not isinstance(part.index, str)  # noqa: S101  the caller looked
        assert part.index is not None  # noqa: S101  the caller looked
        try:
            index = self.number(self._single(part.index, is_quoted=True), part.place)
        except UnresolvedError:
            return None
        if index < 0:
            index += max(elements, default=-1) + 1
        if index < 0:
            return None
        return [elements[index]] if index in elements else []

    def _argument(self, number: int) -> list[Text] | None:
        arguments = self.state.arguments
        if number <= len(arguments.known):
            return [arguments.known[number - 1]]
        own = str(number - len(arguments.known) + (arguments.offset or 0))
        if arguments.rest and arguments.offset is not None and own in self.state.defined:
            return [known(self.state.defined[own], arguments.rest.place)]
        return None if arguments.rest else []

    def _special(self, name: str, place: Place) -> Text | None:
        arguments, status = self.state.arguments, self.state.status
        if name == "#" and not arguments.rest:
            return known(str(len(arguments.known)), place)
        if name == "?" and status is not None and status >= 0:
            return known(str(status), place)
        return None

    def value(self, part: Parameter) -> Text | list[Text]:  # noqa: PLR0911  one for each form
        """Return the value, or the values of "$@" and "${NAMES[@]}"; what is unknown is asked for."""
        found = self._values(part)
        is_list = part.name in {"@", "*"} or part.index in {"@", "*"}
        if part.operator in {"+", ":+"} and self._is_set(part) is False:
            return [] if is_list else Text()
        if found is None and part.name in {"@", "*"} and not part.operator:
            return [*self.state.arguments.known, self._asked(part)]
        if found is None or part.operator in {"+", ":+"}:
            return self._asked(part)
        if part.operator[-1:] == "?" and not self._is_set(part):
            return unknown(part.name, part.place, part.written)
        try:
            if part.operator == "length":
                return self._length(found, part, is_list=is_list)
            if part.operator == ":" and is_list:
                return self._slice(found, part)
            changed = [self._changed(text, part) for text in found]
            if not is_list and not changed:
                return self._changed(Text(), part) if part.operator else Text()
        except UnresolvedError as error:
            return _holes(error, part.written, part.place)
        return changed if is_list else changed[0]

    def _asked(self, part: Parameter) -> Text:
        arguments = self.state.arguments
        if part.name.isdecimal() and part.name != "0" and arguments.offset is not None:
            number = str(int(part.name) - len(arguments.known) + arguments.offset)
            return unknown(number, part.place, part.written)
        if (part.name.isdecimal() and part.name != "0") or part.name in {"@", "*", "#"}:
            rest = arguments.rest
            return unknown(rest.name if rest else "@", part.place, rest.why if rest else part.written)
        if part.name.isidentifier():
            cell = self.state.cell(part.name)
            return unknown(part.name, part.place, cell.why if cell and cell.why else part.written)
        return unknown(part.name if part.name == "0" else f"${part.name}", part.place, part.written)

    @staticmethod
    def _length(found: list[Text], part: Parameter, *, is_list: bool) -> Text:
        if is_list:
            return known(str(len(found)), part.place)
        text = found[0] if found else Text()
        if not text.is_known:
            raise UnresolvedError(text.asked)
        return known(str(len(text.text)), part.place)

    def _bounds(self, part: Parameter, length: int) -> tuple[int, int]:
        """Return the beginning and the end that ${NAME:offset:length} names."""
        numbers = [self.number(self._single(argument, is_quoted=True), part.place) for argument in part.arguments]
        first = numbers[0] if numbers[0] >= 0 else numbers[0] + length
        if first < 0 or first > length:
            return 0, 0
        end = length if len(numbers) == 1 else first + numbers[1] if numbers[1] >= 0 else length + numbers[1]
        if end < first:
            raise UnresolvedError
        return first, min(end, length)

    def _slice(self, found: list[Text], part: Parameter) -> list[Text]:
        is_arguments = part.name in {"@", "*"}
        elements = self.state.elements(part.name, part.place) if not is_arguments else None
        if elements is not None and sorted(elements) != list(range(len(elements))):
            raise UnresolvedError
        numbers = [self.number(self._single(argument, is_quoted=True), part.place) for argument in part.arguments]
        first = numbers[0] - is_arguments
        if first < 0 or (len(numbers) > 1 and numbers[1] < 0):  # "${@:0}" begins with $0
            raise UnresolvedError
        return found[first:] if len(numbers) == 1 else found[first : first + numbers[1]]

    def _changed(self, text: Text, part: Parameter) -> Text:
        operator = part.operator
        if not operator or operator[-1] in "-=?+":
            return text
        if not text.is_known:
            raise UnresolvedError(text.asked)
        if operator == ":":
            return _part(text, *self._bounds(part, len(text.text)))
        if operator[0] in "^,":
            return self._in_case(text, part)
        signs, pattern = self._signs(part.arguments[0])
        if not pattern.is_known or operator == "@":
            raise UnresolvedError(pattern.asked)
        self.state.budget.spend(part.place, characters=len(text.text) * (len(signs) + len(text.text) // 8 + 1))
        if operator[0] in "#%":
            return _cut(text, operator, Pattern(signs))
        return self._replaced(text, part, signs)

    @staticmethod
    def _in_case(text: Text, part: Parameter) -> Text:
        if part.arguments[0] or not text.text.isascii():
            raise UnresolvedError
        change: Callable[[str], str] = str.upper if part.operator[0] == "^" else str.lower
        whole = Text(tuple(Span(change(span.text), span.place) for span in text.spans))
        return whole if len(part.operator) == 2 else _part(whole, 0, 1) + _part(text, 1, len(text.text))

    def _replaced(self, text: Text, part: Parameter, signs: Sequence[tuple[str, bool]]) -> Text:
        by_signs, by = self._signs(part.arguments[1]) if len(part.arguments) == 2 else ([], Text())
        if not by.is_known or ("&", False) in by_signs or ("\\", False) in by_signs:  # as of bash 5.2 & is the match
            raise UnresolvedError(by.asked)
        by = known("".join(sign for sign, _ in by_signs), part.place)
        if not signs:  # an empty pattern is found at the beginning or the end, where it is tied to one
            return by + text if part.operator == "/#" else text + by if part.operator == "/%" else text
        pattern, whole, operator = Pattern(signs), text.text, part.operator
        if operator == "/%":
            first = next((at for at in range(len(whole) + 1) if pattern.ends(whole, at)[-1:] == [len(whole)]), None)
            return text if first is None else _part(text, 0, first) + by
        found, at, copied = Text(), 0, 0
        while at < len(whole):
            ends = pattern.ends(whole, at)
            if ends and ends[-1] > at:
                found += _part(text, copied, at) + by
                at = copied = ends[-1]
                if operator != "//":
                    break
            elif operator == "/#":
                break
            else:
                at += 1
        return found + _part(text, copied, len(whole))

    def calculated(self, part: Arithmetic) -> Text:
        """Return the value of $((...)) as a text; what is unknown is asked for."""
        try:
            return known(str(self.number(self._single(part.inside, is_quoted=True), part.place)), part.place)
        except UnresolvedError as error:
            return _holes(error, part.written, part.place)

    def number(self, expression: Text, place: Place) -> int:
        """Return the value of an arithmetic expression.

        Raises:
            UnresolvedError: it is unknown; what it might assign is then unknown as well.
        """
        self._depth += 1
        self.state.budget.spend(place, characters=len(expression.text))
        before = self.state.copy() if assigned_names(expression.text) else None
        try:
            if not expression.is_known or self._depth > _DEEPEST:
                raise UnresolvedError(expression.asked)
            return Evaluation(expression.text, lambda name: self._number_of(name, place), self._put(place)).value()
        except (UnresolvedError, RecursionError) as error:
            for name in assigned_names(expression.text) if before else ():
                self.state.forget(name, expression.text)
            raise UnresolvedError(error.asked if isinstance(error, UnresolvedError) else ()) from error
        finally:
            self._depth -= 1

    def _number_of(self, name: str, place: Place) -> int:
        text = self.state.value(name, place)
        if text is None:
            return 0
        if not text.is_known:
            raise UnresolvedError(text.asked)
        return self.number(text, place)

    def _put(self, place: Place) -> Callable[[str, int], None]:
        def put(name: str, value: int) -> None:
            cell = self.state.cell(name)
            if cell is not None and (cell.is_array or cell.elements is None):
                elements = None if cell.elements is None else {**cell.elements, 0: known(str(value), place)}
                if cell.elements is None and not cell.is_array:
                    elements = {0: known(str(value), place)}
                self.state.put(name, Cell(elements, is_array=cell.is_array))
            else:
                self.state.put(name, Cell({0: known(str(value), place)}))

        return put


def _holes(error: UnresolvedError, written: str, place: Place) -> Text:
    if not error.asked:
        return unknown(written, place, written)
    return Text(tuple(Span("", place, asked) for asked in error.asked))


def _part(text: Text, start: int, end: int) -> Text:
    """Return some characters of a text that is known, with their places."""
    found, position = [], 0
    for span in text.spans:
        piece = span.text[max(start - position, 0) : max(end - position, 0)]
        if piece:
            found.append(Span(piece, span.place))
        position += len(span.text)
    return Text(tuple(found))


def _cut(text: Text, operator: str, pattern: Pattern) -> Text:
    """Return a text without its beginning (#) or end (%) of a pattern: the shortest, or the longest (## and %%)."""
    whole = text.text
    if operator[0] == "#":
        ends = pattern.ends(whole)
        return _part(text, ends[0 if operator == "#" else -1], len(whole)) if ends else text
    starts = range(len(whole), -1, -1) if operator == "%" else range(len(whole) + 1)
    found = next((start for start in starts if pattern.ends(whole, start)[-1:] == [len(whole)]), len(whole))
    return _part(text, 0, found)
