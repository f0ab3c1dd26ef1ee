"""Settings that a command line states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pretrain.errors import did_you_mean
from pretrain.tools.migrate.arguments.converting import FALSE_TEXTS, WrongValueError, convert
from pretrain.tools.migrate.arguments.option_words import read_options
from pretrain.tools.migrate.programs.known import family_of, programs
from pretrain.tools.migrate.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.migrate.arguments.option_words import Option
    from pretrain.tools.migrate.programs.program import Flag, Program
    from pretrain.tools.migrate.setting import Asked, Word


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
