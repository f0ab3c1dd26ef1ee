"""Settings that a command line states."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pretrain.errors import did_you_mean
from pretrain.tools.migrate.programs import family_of, programs
from pretrain.tools.migrate.setting import Setting, Word
from pretrain.tools.migrate.typed_values import FALSE_TEXTS, WrongValueError, convert

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.migrate.programs import Flag, Program
    from pretrain.tools.migrate.setting import Asked


@dataclass(frozen=True, slots=True)
class Parsed:
    """A command line as its program understands it.

    Attributes:
        settings: stated, by name.
        asked: by name, values that a setting's value needs; such a setting is not in `settings`.
        asked_flags: values that stand where a flag could stand.
        problems: lines for the user, each for a reason for which the program would not start.
        notices: lines for the user on what the program does, though its author may mean something else.
    """

    settings: dict[str, Setting] = field(default_factory=dict)
    asked: dict[str, tuple[Asked, ...]] = field(default_factory=dict)
    asked_flags: tuple[Asked, ...] = ()
    problems: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def parse(words: Sequence[Word], program: Program) -> Parsed:
    """Read arguments as the program's own parser reads them.

    Args:
        words: arguments, without the program's own name.
        program: whose flags they are.
    """
    line = read_options(words, program)
    parsed = Parsed(asked_flags=tuple(asked for word in line.asked for asked in word.asked))
    for option in line.options:
        _take(option, program, parsed)
    parsed.problems.extend(f"{word.place}: {word.text!r} belongs to no flag" for word in line.strays)
    return parsed


def _take(option: Option, program: Program, parsed: Parsed) -> None:
    """Add an option; a later one takes the place of one before it."""
    problem = _flag_problem(option, program)
    if problem:
        parsed.problems.append(f"{option.word.place}: {option.written}: {problem}")
        return
    flag = option.flags[0]
    asked = tuple(asked for value in option.values for asked in value.asked)
    if asked:
        parsed.settings.pop(flag.name, None)
        parsed.asked[flag.name] = asked
        return
    try:
        value = convert(flag, [value.text for value in option.values])
    except WrongValueError as error:
        parsed.problems.append(f"{option.word.place}: {option.written}: {error}")
        return
    parsed.asked.pop(flag.name, None)
    setting = Setting(flag.name, value, option.written, option.word.place)
    parsed.notices.extend(_notices(option, flag, setting, parsed.settings.get(flag.name)))
    parsed.settings[flag.name] = setting


def _flag_problem(option: Option, program: Program) -> str:
    """Return why an option is not one of the program, or an empty string."""
    if len(option.flags) > 1:
        meant = ", ".join(flag.spellings[0] for flag in option.flags)
        return f"it can be the beginning of {meant}"
    if not option.flags:
        hint = _elsewhere(option.written, program) or _similar(option.written, program)
        return f"{program.title} has no such flag{hint}"
    if option.flags[0].name in program.refused:
        return f"{program.title} ends with an error for it{_elsewhere(option.written, program)}"
    return ""


def _elsewhere(written: str, program: Program) -> str:
    """Name the newest version that takes a flag, of the same program if one does."""
    same = family_of(program.name)
    others = [each for each in programs().values() if each.dialect == program.dialect and each not in same]
    for each in (*reversed(same), *others):
        flag = each.spelled.get(written)
        if flag is not None and flag.name not in each.refused:
            return f"; {each.title} has it (--from {each.name})"
    return ""


def _similar(written: str, program: Program) -> str:
    return f".{did_you_mean(written, program.spelled)}".removesuffix(".")


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
