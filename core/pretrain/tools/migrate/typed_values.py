"""Conversion of a flag's words into its value, as argparse converts them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError, did_you_mean
from pretrain.recipe.section import shown
from pretrain.tools.migrate.translation import dialect_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.migrate.programs import Flag, Program
    from pretrain.tools.migrate.setting import Setting

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
    problem = f"it needs {wanted}, and has {len(texts) or 'none'}"
    raise WrongValueError(problem if most else f"it takes no value, and has {texts[0]!r}")


def _one(flag: Flag, text: str) -> Any:
    try:
        value = _typed(flag, text)
    except WrongValueError:
        raise
    except ValueError as error:
        problem = f"{text!r} is not {_KINDS[flag.kind]}"
        raise WrongValueError(problem) from error
    if flag.choices and value not in flag.choices:
        choices = [str(choice) for choice in flag.choices]
        problem = f"{text!r} is none of {', '.join(choices)}.{did_you_mean(text, choices)}"
        raise WrongValueError(problem.removesuffix("."))
    return value


def _typed(flag: Flag, text: str) -> Any:
    match flag.kind:
        case "int":
            return _bounded(int(text))
        case "float":
            return float(text)
        case "bool":
            return bool(text)  # as argparse has it: "False" is True
        case "pattern":
            return text if "[" in text else _bounded(int(text))
    return text


def _bounded(number: int) -> int:
    if abs(number) >= LARGEST:
        problem = f"{number} is too large a number"
        raise WrongValueError(problem)
    return number


_SPLIT = "data_path"
"""`validate_yaml` splits its text at blanks; of the others it makes no list."""


def checked(setting: Setting, program: Program) -> Setting:
    """Return a setting with a value of its flag's type, if a recipe takes anything from it."""
    # A number that a text stands for stays a mistake: Megatron-LM does not convert the values of a YAML file, and would
    # compute with the text.
    flag = program.flags.get(setting.name)
    try:
        _check_size(setting.value)
        is_needed = dialect_of(program).needs(setting.name)
        if flag is None or setting.value is None or not is_needed or _is_of_program(flag, setting):
            return setting
        return replace(setting, value=_fitting(flag, setting.value))
    except WrongValueError as error:
        msg = (
            f"{setting.place}: {setting.written}: {shown(setting.value)} is not {error}.\n"
            "The program would not start with it, or misread it: correct it there."
        )
        raise MigrateError(msg) from error


def _check_size(value: Any) -> None:
    """Refuse a number of any setting that is absurdly large: Python does not even write one of 4300 digits."""
    if isinstance(value, int) and abs(value) >= LARGEST:
        kind = "a number of a size that a training can have"
        raise WrongValueError(kind)


def _is_of_program(flag: Flag, setting: Setting) -> bool:
    """Say whether a value is the flag's default or constant, whatever its type."""
    return any(type(setting.value) is type(own) and setting.value == own for own in (flag.default, flag.given))


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
