"""Options of a command line with their values, split as Python's argparse does it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.tools.migrate.setting import Word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.migrate.programs.program import Flag, Program

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


@dataclass(frozen=True, slots=True)
class Option:
    """A flag of a command line.

    Attributes:
        word: that has it.
        written: the flag in it: "--seed" of "--seed=1".
        flags: of the program that it can be: one, none if the program has no such flag, several for a beginning of
            several.
        values: words that follow it.
        is_attached: whether its only value is of the same word.
    """

    word: Word
    written: str
    flags: tuple[Flag, ...]
    values: tuple[Word, ...] = ()
    is_attached: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """A command line.

    Attributes:
        options: in their order.
        asked: words that stand where an option could stand, and are not known.
        strays: words that belong to no option.
    """

    options: tuple[Option, ...]
    asked: tuple[Word, ...]
    strays: tuple[Word, ...]


def read_options(words: Sequence[Word], program: Program) -> Options:
    """Tell options, their values and other words apart.

    A word that is not known counts as a value of the option before it as long as that can take one.

    Source: `_parse_known_args` and `_parse_optional` of argparse in Python 3.8 to 3.13.
    """
    options: list[Option] = []
    asked: list[Word] = []
    strays: list[Word] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.text == "--" and not word.asked:
            strays.extend(words[at:])
            break
        option = read_option(word, program)
        if option is not None:
            count = 0 if option.is_attached else _values_after(option, words[at:], program)
            options.append(option if option.is_attached else _with_values(option, words[at : at + count]))
            at += count
        elif word.asked and (not word.text or word.text.startswith("-")):
            asked.append(word)
        else:
            strays.append(word)
    return Options(tuple(options), tuple(asked), tuple(strays))


def read_option(word: Word, program: Program) -> Option | None:
    """Return the option that a word is, without the values after it; None if it is none, or not known."""
    written, equals, value = word.text.partition("=")
    if not word.text.startswith("-") or (word.asked and not equals):
        return None
    if word.text in program.spelled:
        return Option(word, word.text, (program.spelled[word.text],))
    flags = matching_flags(written, program)
    if flags and equals:
        return Option(word, written, flags, (Word(value, word.place, word.asked),), is_attached=True)
    if flags:
        return Option(word, written, flags)
    is_value = word.text == "-" or _NEGATIVE_NUMBER.fullmatch(word.text) or " " in word.text
    return None if is_value or word.asked else Option(word, written, (), is_attached=bool(equals))


def matching_flags(written: str, program: Program) -> tuple[Flag, ...]:
    """Return the flags that a text can be: the flag itself, or where the parser allows it those that begin so."""
    if written in program.spelled:
        return (program.spelled[written],)
    if not program.prefixes or not written.startswith("--"):
        return ()
    begun = {spelling: flag for spelling, flag in program.spelled.items() if spelling.startswith(written)}
    return tuple(begun.values())


def _with_values(option: Option, values: Sequence[Word]) -> Option:
    return Option(option.word, option.written, option.flags, tuple(values))


def _values_after(option: Option, words: Sequence[Word], program: Program) -> int:
    """Count the words that an option takes; one that the program does not have takes all that are no options."""
    most = _most_values(option.flags[0]) if len(option.flags) == 1 else len(words)
    count = 0
    while count < min(most, len(words)) and _is_value(words[count], program):
        count += 1
    return count


def _most_values(flag: Flag) -> float:
    """Return how many words a flag takes at most."""
    if flag.kind == "switch":
        return 0
    if isinstance(flag.nargs, int):
        return flag.nargs
    return math.inf if flag.nargs in {"*", "+"} else 1


def _is_value(word: Word, program: Program) -> bool:
    if word.text == "--" and not word.asked:
        return False
    if word.asked:
        return not word.text.startswith("--")
    return read_option(word, program) is None
