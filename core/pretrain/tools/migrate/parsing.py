"""Settings of a command line, read as Python's argparse reads them, and values of files with the types of flags."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError, did_you_mean
from pretrain.recipe.section import shown
from pretrain.tools.migrate.programs import family_of, programs
from pretrain.tools.migrate.setting import Setting, Word
from pretrain.tools.migrate.translation import dialect_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pretrain.tools.migrate.programs import Flag, Program
    from pretrain.tools.migrate.setting import RuntimeValue

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_LONG = 8


@dataclass(frozen=True, slots=True)
class Parsed:
    """Settings of one source or of several, the later over the earlier, as their program understands them."""

    settings: dict[str, Setting] = field(default_factory=dict)  # stated, by name
    asked: dict[str, tuple[RuntimeValue, ...]] = field(default_factory=dict)  # by name; not in `settings` then
    asked_flags: list[RuntimeValue] = field(default_factory=list)  # values that stand where a flag could stand
    unknown: list[Setting] = field(default_factory=list)  # flags of no program, with the words after them
    problems: list[str] = field(default_factory=list)  # why the program would not start
    notices: list[str] = field(default_factory=list)  # what the program does, though its author may mean another

    def put(self, setting: Setting) -> None:
        """Take a setting in the place of an earlier one of its name."""
        before = self.settings.get(setting.name)
        if before is not None and before.value != setting.value:
            self.notices.append(f"{setting.place}: {_shown(setting)} replaces {_shown(before)} of {before.place}")
        self.settings[setting.name] = setting
        self.asked.pop(setting.name, None)


@dataclass(frozen=True, slots=True)
class Option:
    """A flag of a command line."""

    word: Word  # that has it
    written: str  # the flag in it: "--seed" of "--seed=1"
    flags: tuple[Flag, ...]  # that it can be: one, none if it is unknown, several for a beginning of several
    values: tuple[Word, ...] = ()  # words that follow it
    is_attached: bool = False  # whether its only value is of the same word


def parse(words: Sequence[Word], program: Program, into: Parsed | None = None) -> Parsed:
    """Read arguments as the program's own parser reads them, over those of earlier sources."""
    # A word that is not known counts as a value of the flag before it as long as that can take one. An unknown flag has
    # the words up to the next one. Source: `_parse_known_args` and `_parse_optional` of argparse in Python 3.8 to 3.13.
    parsed = Parsed() if into is None else into
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
    flags = own_flags(written, program)
    if not flags and written in program.elsewhere:  # of another version, or of another program
        flags = (program.elsewhere[written],)
    if flags and equals:
        return Option(word, written, flags, (Word(value, word.place, word.asked),), is_attached=True)
    if flags:
        return Option(word, written, flags)
    is_value = word.text == "-" or _NEGATIVE_NUMBER.fullmatch(word.text) or " " in word.text
    return None if is_value or word.asked else Option(word, word.text, (), is_attached=bool(equals))


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
    most = len(words)
    if len(option.flags) == 1 and option.flags[0].nargs not in {"*", "+"}:
        flag = option.flags[0]
        most = 0 if flag.kind == "switch" else flag.nargs if isinstance(flag.nargs, int) else 1
    count = 0
    while count < min(most, len(words)):
        word = words[count]
        is_flag = word.text.startswith("--") if word.asked else word.text == "--" or _option(word, program) is not None
        if is_flag:
            break
        count += 1
    return count


def _take(option: Option, program: Program, parsed: Parsed) -> None:
    place = option.word.place
    if not option.flags:
        name = option.written.partition("=")[0].lstrip("-").replace("-", "_")
        text = " ".join(f"{word.text}{''.join(asked.why for asked in word.asked)}" for word in option.values)
        parsed.unknown.append(Setting(name, text, option.written, place))
        return
    if len(option.flags) > 1:
        meant = ", ".join(flag.spellings[0] for flag in option.flags)
        parsed.problems.append(f"{place}: {option.written} is ambiguous: it can be short for {meant}")
        return
    flag = option.flags[0]
    parsed.notices.extend(_of_another(option, program))
    asked = tuple(asked for value in option.values for asked in value.asked)
    if asked:
        before = parsed.settings.pop(flag.name, None)
        if before is not None:
            replaced = f"{_shown(before)} of {before.place}"
            parsed.notices.append(f"{place}: {option.written}, whose value is not known, replaces {replaced}")
        parsed.asked[flag.name] = asked
        return
    try:
        value = convert(flag, [value.text for value in option.values])
    except WrongValueError as error:
        parsed.problems.append(f"{place}: {option.written}: {error}")
        return
    parsed.put(Setting(flag.name, value, option.written, place))
    if flag.kind == "bool" and any(value.text.lower() in FALSE_TEXTS for value in option.values):
        parsed.notices.append(
            f"{place}: {option.written} {option.values[0].text} is true for the program: "
            "it reads every text that is not empty as true"
        )


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


def _shown(setting: Setting) -> str:
    """Return a setting as its source has it: "--seed 1", "--fp16", "fp16 True"."""
    if setting.written.startswith("-") and (isinstance(setting.value, bool) or setting.value is None):
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


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "switch": "true or false",
    "pattern": "a whole number or an expression of a list",
}
FALSE_TEXTS = frozenset(("false", "no", "off", "0", "none"))
"""Texts of which bool() makes True, against what who writes them means."""

LARGEST = 2**63
"""No whole number of a training is as large; one of thousands of digits could not even be shown."""


class WrongValueError(ValueError):
    """A value that the program's parser refuses; says why, or of `checked` what it should be."""


def convert(flag: Flag, texts: Sequence[str]) -> Any:
    """Return the value that texts give a flag, or raise WrongValueError."""
    if flag.kind == "switch":
        _check_count(texts, 0, 0)
        return flag.given
    match flag.nargs:
        case None:
            _check_count(texts, 1, 1)
        case "?":
            return _one(flag, texts[0]) if texts else flag.given
        case "+":
            _check_count(texts, 1, max(1, len(texts)))
        case int(count):
            _check_count(texts, count, count)
    values = [_one(flag, text) for text in texts]
    return values[0] if flag.nargs is None else values


def _check_count(texts: Sequence[str], least: int, most: int) -> None:
    if least <= len(texts) <= most:
        return
    wanted = "a value" if least == 1 else f"{least} values"
    problem = f"needs {wanted}, but has {len(texts) or 'none'}"
    raise WrongValueError(problem if most else f"takes no value, but has {texts[0]!r}")


def _one(flag: Flag, text: str) -> Any:
    try:
        value = _typed(flag, text)
    except ValueError as error:
        problem = f"{text!r} is not {_KINDS[flag.kind]}"
        raise WrongValueError(problem) from error
    if isinstance(value, int) and abs(value) >= LARGEST:
        problem = f"{value} is too large"
        raise WrongValueError(problem)
    if flag.choices and value not in flag.choices:
        choices = [str(choice) for choice in flag.choices]
        problem = f"{text!r} is not one of {', '.join(choices)}.{did_you_mean(text, choices)}"
        raise WrongValueError(problem.removesuffix("."))
    return value


def _typed(flag: Flag, text: str) -> Any:
    match flag.kind:
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "bool":
            return bool(text)  # as argparse has it: "False" is True
        case "pattern":
            return text if "[" in text else int(text)
    return text


_SPLIT = "data_path"
"""`validate_yaml` splits its text at blanks; of the others it makes no list."""


def checked(setting: Setting, program: Program) -> Setting:
    """Return a setting with a value of its flag's type, if a recipe takes anything from it."""
    # A number that a text stands for stays a mistake: Megatron-LM does not convert the values of a YAML file, and would
    # compute with the text.
    flag = program.flags.get(setting.name)
    try:
        _check_size(setting.value)
        if flag is None or setting.value is None or not dialect_of(program).needs(setting.name):
            return setting
        if any(type(setting.value) is type(own) and setting.value == own for own in (flag.default, flag.given)):
            return setting
        return replace(setting, value=_fitting(flag, setting.value))
    except WrongValueError as error:
        msg = (
            f"{setting.place}: {setting.written}: {shown(setting.value)} is not {error}.\n"
            "The program would misread it, or not start: correct it there."
        )
        raise MigrateError(msg) from error


def _check_size(value: Any) -> None:
    """Refuse a number of any setting that is absurdly large: Python does not even write one of 4300 digits."""
    if isinstance(value, int) and abs(value) >= LARGEST:
        kind = "a number of a sensible size"
        raise WrongValueError(kind)


def _fitting(flag: Flag, value: Any) -> Any:
    if flag.nargs in (None, "?"):
        return _one_typed(flag, value)
    if isinstance(value, str) and flag.name == _SPLIT:
        value = value.split()
    count = flag.nargs if isinstance(flag.nargs, int) else None
    if not isinstance(value, list) or (count is not None and len(value) != count):
        wanted = f"a list{'' if count is None else f' of {count}'}: [..., ...]"
        raise WrongValueError(wanted)
    return [_one_typed(flag, item) for item in value]


def _one_typed(flag: Flag, value: Any) -> Any:
    """Return one value, with the type that the flag's parser gives it."""
    _check_size(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match flag.kind:
        case "int" if is_number and abs(value) < LARGEST and value == int(value):
            return int(value)
        case "float" if is_number:
            return float(value)
        case "str" if is_number or isinstance(value, str):
            return str(value)
        case "bool" | "switch" if isinstance(value, bool):
            return value
        case "pattern" if is_number or isinstance(value, str | list):
            return value
        case "object":
            return value
    raise WrongValueError(_KINDS[flag.kind])
