"""Protection of the checks: one that fails is a finding, and the next one runs."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from pretrain.errors import PretrainError, shows_traceback
from pretrain.tools.doctor.finding import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def guarded(check: str, call: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return a check's findings; where it raises, those before it and one that is wrong, with the reason.

    Args:
        check: name of the finding that is wrong.
        call: makes the findings, one after the other.
    """
    found: list[Finding] = []
    try:
        found.extend(call())  # a generator's findings before its error are kept
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it is, the doctor shows it and goes on
        found.append(failed(check, error))
    return found


def found_by(check: str, require: Callable[[], None]) -> list[Finding]:
    """Return the finding of a check that raises what is wrong; none where it does not."""
    return guarded(check, lambda: require() or ())  # type: ignore[func-returns-value]


def failed(check: str, error: BaseException) -> Finding:
    """Return the finding of an error: a user error's first line and what to do, anything else by its type."""
    if shows_traceback():
        traceback.print_exception(error)
    if isinstance(error, PretrainError):
        text, _, remedy = str(error).partition("\n")
        return Finding(check=check, verdict=Verdict.WRONG, text=text, remedy=remedy)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    remedy = "PRETRAIN_TRACEBACK=1 shows where."
    return Finding(check=check, verdict=Verdict.WRONG, text=text[:300], remedy=remedy)
