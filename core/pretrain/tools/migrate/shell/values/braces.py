"""Expansion of braces, a{b,c}d and {1..3}, on syntax trees: it comes before all other expansions."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pretrain.tools.migrate.setting import Place
from pretrain.tools.migrate.shell.spans import Text, known
from pretrain.tools.migrate.shell.syntax.tree import Literal

if TYPE_CHECKING:
    from pretrain.tools.migrate.shell.syntax.tree import Part, Parts

_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_LETTERS = re.compile(r"([a-zA-Z])\.\.([a-zA-Z])")
_MOST = 10_000


class TooManyError(Exception):
    """Braces that give more words than any script needs."""


@dataclass(frozen=True, slots=True)
class _Sign:
    """A character outside of quotes."""

    text: str
    place: Place


_Atom: TypeAlias = "_Sign | Part"


def expanded(parts: Parts) -> list[Parts]:
    """Return the words that a word's braces make; the word alone if it has none.

    Raises:
        TooManyError: they are too many.
    """
    if not any(isinstance(part, Literal) and not part.quoted and "{" in part.text.text for part in parts):
        return [parts]
    return [_joined(word) for word in _words(_atoms(parts))]


def _atoms(parts: Parts) -> list[_Atom]:
    found: list[_Atom] = []
    for part in parts:
        if isinstance(part, Literal) and not part.quoted:
            found += [_Sign(sign, span.place) for span in part.text.spans for sign in span.text]
        else:
            found.append(part)
    return found


def _joined(atoms: list[_Atom]) -> Parts:
    found: list[Part] = []
    for atom in atoms:
        if not isinstance(atom, _Sign):
            found.append(atom)
            continue
        text = known(atom.text, atom.place)
        last = found[-1] if found else None
        if isinstance(last, Literal) and not last.quoted and last.text.spans[-1].place == atom.place:
            span = last.text.spans[-1]
            found[-1] = Literal(
                Text((*last.text.spans[:-1], type(span)(span.text + atom.text, span.place))), quoted=False
            )
        else:
            found.append(Literal(text, quoted=False))
    return tuple(found)


def _words(atoms: list[_Atom]) -> list[list[_Atom]]:
    for start, atom in enumerate(atoms):
        if _sign(atom) != "{":
            continue
        end, commas = _matching(atoms, start)
        if end < 0:
            continue
        inner = _alternatives(atoms, start, end, commas)
        if inner is None:
            continue
        found = [[*atoms[:start], *middle, *rest] for middle in inner for rest in _words(atoms[end + 1 :])]
        if len(found) > _MOST:
            raise TooManyError
        return found
    return [atoms]


def _sign(atom: _Atom) -> str:
    return atom.text if isinstance(atom, _Sign) else ""


def _matching(atoms: list[_Atom], start: int) -> tuple[int, list[int]]:
    depth, commas = 0, []
    for position in range(start, len(atoms)):
        sign = _sign(atoms[position])
        depth += (sign == "{") - (sign == "}")
        if sign == "," and depth == 1:
            commas.append(position)
        if not depth:
            return position, commas
    return -1, commas


def _alternatives(atoms: list[_Atom], start: int, end: int, commas: list[int]) -> list[list[_Atom]] | None:
    if commas:
        bounds = [start, *commas, end]
        return [word for first, last in itertools.pairwise(bounds) for word in _words(atoms[first + 1 : last])]
    inside = atoms[start + 1 : end]
    if not inside or not all(isinstance(atom, _Sign) for atom in inside):
        return None
    texts = _sequence("".join(_sign(atom) for atom in inside))
    place = inside[0].place if isinstance(inside[0], _Sign) else Place("")
    return None if texts is None else [[_Sign(sign, place) for sign in text] for text in texts]


def _sequence(inside: str) -> list[str] | None:
    if letters := _LETTERS.fullmatch(inside):
        first, last = ord(letters[1]), ord(letters[2])
        return [chr(code) for code in range(first, last + (1 if last >= first else -1), 1 if last >= first else -1)]
    numbers = _NUMBERS.fullmatch(inside)
    if numbers is None:
        return None
    first, last = int(numbers[1]), int(numbers[2])
    step = abs(int(numbers[3] or 1)) or 1
    if abs(last - first) // step > _MOST:
        raise TooManyError
    padded = any(re.match(r"-?0\d", text) for text in (numbers[1], numbers[2]))
    width = max(len(numbers[1]), len(numbers[2])) if padded else 0
    values = range(first, last + 1, step) if last >= first else range(first, last - 1, -step)
    return [f"{value:0{width}d}" for value in values]
