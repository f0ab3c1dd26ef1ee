"""Conversion of a flag's words into its value, as argparse converts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.migrate.programs.program import Flag

_NUMBERS = {"int": "a whole number", "float": "a number", "pattern": "a whole number or an expression of a list"}
FALSE_TEXTS = frozenset(("false", "no", "off", "0", "none"))
"""Texts of which bool() makes True, against what who writes them means."""

LARGEST = 2**63
"""No whole number of a training is as large; one of thousands of digits could not even be shown."""


class WrongValueError(ValueError):
    """Words that the parser refuses as the value of a flag."""


def convert(flag: Flag, texts: Sequence[str]) -> Any:
    """Return the value that texts give a flag.

    Raises:
        WrongValueError: they are too few or too many, of another type, or not among the choices; says so.
    """
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
    if not least <= len(texts) <= most:
        raise WrongValueError(_count_problem(texts, least, most))


def _count_problem(texts: Sequence[str], least: int, most: int) -> str:
    if most == 0:
        return f"it takes no value, and has {texts[0]!r}"
    wanted = "a value" if least == 1 else f"{least} values"
    return f"it needs {wanted}, and has {len(texts) or 'none'}"


def _one(flag: Flag, text: str) -> Any:
    try:
        value = _typed(flag, text)
    except WrongValueError:
        raise
    except ValueError as error:
        problem = f"{text!r} is not {_NUMBERS[flag.kind]}"
        raise WrongValueError(problem) from error
    if flag.choices and value not in flag.choices:
        raise WrongValueError(_choice_problem(text, [str(choice) for choice in flag.choices]))
    return value


def _choice_problem(text: str, choices: Sequence[str]) -> str:
    return f"{text!r} is none of {', '.join(choices)}.{did_you_mean(text, choices)}".removesuffix(".")


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
    """Return a number that is not absurdly large."""
    if abs(number) >= LARGEST:
        problem = f"{number} is too large a number"
        raise WrongValueError(problem)
    return number
