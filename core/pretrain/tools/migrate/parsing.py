"""Settings that a command line states, read as Python's argparse reads them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pretrain.tools.migrate.programs import family_of, programs
from pretrain.tools.migrate.setting import Setting, Word
from pretrain.tools.migrate.typed_values import FALSE_TEXTS, WrongValueError, convert

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pretrain.tools.migrate.programs import Flag, Program
    from pretrain.tools.migrate.setting import RuntimeValue

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_LONG = 8


@dataclass(frozen=True, slots=True)
class Parsed:
    """A command line as its program understands it."""

    settings: dict[str, Setting] = field(default_factory=dict)  # stated, by name
    asked: dict[str, tuple[RuntimeValue, ...]] = field(default_factory=dict)  # by name; not in `settings` then
    asked_flags: list[RuntimeValue] = field(default_factory=list)  # values that stand where a flag could stand
    unknown: list[Setting] = field(default_factory=list)  # flags of no program, with the words after them
    problems: list[str] = field(default_factory=list)  # why the program would not start
    notices: list[str] = field(default_factory=list)  # what the program does, though its author may mean another


@dataclass(frozen=True, slots=True)
class Option:
    """A flag of a command line."""

    word: Word  # that has it
    written: str  # the flag in it: "--seed" of "--seed=1"
    flags: tuple[Flag, ...]  # that it can be: one, none if it is unknown, several for a beginning of several
    values: tuple[Word, ...] = ()  # words that follow it
    is_attached: bool = False  # whether its only value is of the same word


def parse(words: Sequence[Word], program: Program) -> Parsed:
    """Read arguments as the program's own parser reads them."""
    # A word that is not known counts as a value of the flag before it as long as that can take one. An unknown flag has
    # the words up to the next one. Source: `_parse_known_args` and `_parse_optional` of argparse in Python 3.8 to 3.13.
    parsed = Parsed()
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.text == "--" and not word.asked:
            parsed.problems.extend(_stray(word) for word in words[at:])
            break
        option = _option(word, program)
        if option is not None:
            count = 0 if option.is_attached else _values_after(option, words[at:], program)
            option = replace(option, values=(*option.values, *words[at : at + count]))
            _take(option, program, parsed)
            at += count
        elif word.asked and (not word.text or word.text.startswith("-")):
            parsed.asked_flags.extend(word.asked)
        else:
            parsed.problems.append(_stray(word))
    return parsed


def _stray(word: Word) -> str:
    return f"{word.place}: {word.text!r} belongs to no flag"


def _option(word: Word, program: Program) -> Option | None:
    """Return the option that a word is, without the values after it; None if it is none, or not known."""
    written, equals, value = word.text.partition("=")
    if not word.text.startswith("-") or (word.asked and not equals):
        return None
    flags = matching_flags(written, program)
    if flags and equals:
        return Option(word, written, flags, (Word(value, word.place, word.asked),), is_attached=True)
    if flags:
        return Option(word, written, flags)
    is_value = word.text == "-" or _NEGATIVE_NUMBER.fullmatch(word.text) or " " in word.text
    return None if is_value or word.asked else Option(word, word.text, (), is_attached=bool(equals))


def matching_flags(written: str, program: Program) -> tuple[Flag, ...]:
    """Return the flags that a text can be: those of the program, else that of another version or program."""
    own = own_flags(written, program)
    return own or ((program.elsewhere[written],) if written in program.elsewhere else ())


def own_flags(written: str, program: Program) -> tuple[Flag, ...]:
    """Return the flags of the program that a text can be: the flag itself, or those that begin so if it takes them."""
    if written in program.spelled:
        return (program.spelled[written],)
    if not program.prefixes or not written.startswith("--"):
        return ()
    return tuple(flag for spelling, flag in program.spelled.items() if spelling.startswith(written))


def _values_after(option: Option, words: Sequence[Word], program: Program) -> int:
    if not option.flags:
        ends = (at for at, word in enumerate(words) if word.text.startswith("--"))
        return next(ends, len(words))
    most = _most_values(option.flags[0]) if len(option.flags) == 1 else len(words)
    count = 0
    while count < min(most, len(words)) and _is_value(words[count], program):
        count += 1
    return count


def _most_values(flag: Flag) -> float:
    if flag.kind == "switch":
        return 0
    if isinstance(flag.nargs, int):
        return flag.nargs
    return math.inf if flag.nargs in {"*", "+"} else 1


def _is_value(word: Word, program: Program) -> bool:
    if word.asked:
        return not word.text.startswith("--")
    return word.text != "--" and _option(word, program) is None


def _take(option: Option, program: Program, parsed: Parsed) -> None:
    place = option.word.place
    if not option.flags:
        parsed.unknown.append(Setting(_name(option.written), _text(option.values), option.written, place))
        return
    if len(option.flags) > 1:
        meant = ", ".join(flag.spellings[0] for flag in option.flags)
        parsed.problems.append(f"{place}: {option.written}: it can be the beginning of {meant}")
        return
    flag = option.flags[0]
    parsed.notices.extend(_of_another(option, program))
    asked = tuple(asked for value in option.values for asked in value.asked)
    if asked:
        parsed.settings.pop(flag.name, None)
        parsed.asked[flag.name] = asked
        return
    try:
        value = convert(flag, [value.text for value in option.values])
    except WrongValueError as error:
        parsed.problems.append(f"{place}: {option.written}: {error}")
        return
    parsed.asked.pop(flag.name, None)
    setting = Setting(flag.name, value, option.written, place)
    parsed.notices.extend(_notices(option, flag, setting, parsed.settings.get(flag.name)))
    parsed.settings[flag.name] = setting


def _name(written: str) -> str:
    return written.partition("=")[0].lstrip("-").replace("-", "_")


def _text(values: Sequence[Word]) -> str:
    """Return the words of an unknown flag; one that is not known is shown as it is written."""
    return " ".join(f"{word.text}{''.join(asked.why for asked in word.asked)}" for word in values)


def _of_another(option: Option, program: Program) -> list[str]:
    """Say that the version for which the command is taken lacks a flag, or ends for it, and which one has it."""
    flag, written = option.flags[0], option.written
    if own_flags(written, program) and flag.name not in program.refused:
        return []
    family = family_of(program.name)[::-1]
    others = (each for each in tuple(programs().values())[::-1] if each.dialect == program.dialect)
    having = (each for each in (*family, *others) if written in each.spelled and flag.name not in each.refused)
    found = next(having, None)
    read = "" if found is None else f"; it is read as in {found.title} (--from {found.name})"
    lacks = "ends with an error for it" if flag.name in program.refused else "has no such flag"
    return [f"{option.word.place}: {written}: {program.title} {lacks}{read}"]


def _notices(option: Option, flag: Flag, setting: Setting, before: Setting | None) -> list[str]:
    notices = []
    if before is not None and before.value != setting.value:
        notices.append(f"{setting.place}: {_shown(setting)} takes the place of {_shown(before)} of {before.place}")
    if flag.kind == "bool" and any(value.text.lower() in FALSE_TEXTS for value in option.values):
        notices.append(
            f"{setting.place}: {option.written} {option.values[0].text} is true for the program: "
            "it takes every text that is not empty as true"
        )
    return notices


def _shown(setting: Setting) -> str:
    """Return a setting as a command has it: "--seed 1", "--fp16"."""
    if isinstance(setting.value, bool) or setting.value is None:
        return setting.written
    values = setting.value if isinstance(setting.value, list) else [setting.value]
    return " ".join((setting.written, *map(str, values)))


def slip(written: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for a name of which one letter, of a long one two, may be mistyped; else nothing."""
    most = 1 if len(written) < _LONG else 2
    near = min(
        (name for name in known if abs(len(name) - len(written)) <= most),
        key=lambda name: edits(written, name),
        default="",
    )
    return f" Did you mean '{near}'?" if near and edits(written, near) <= most else ""


def edits(one: str, other: str) -> int:
    """Return how many letters to put in, take out or replace make one word the other."""
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        before, row = row, [at]
        for place, wanted in enumerate(other, 1):
            row.append(min(before[place] + 1, row[-1] + 1, before[place - 1] + (letter != wanted)))
    return row[-1]
