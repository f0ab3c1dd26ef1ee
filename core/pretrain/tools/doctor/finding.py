"""Findings of the doctor: one line each."""

from __future__ import annotations

import json
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pretrain.errors import PretrainError, shows_traceback
from pretrain.report.plain_text import rank_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Verdict(StrEnum):
    """Result of a check."""

    OK = "ok"
    LOOK = "look"  # may be intended, or cost speed; a training runs
    WRONG = "wrong"  # a training would fail or give wrong results; the exit code is 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Result of one check on one rank, or on all of them."""

    check: str  # what was checked, in a few words: "versions", "kernel attention", "all-reduce"
    verdict: Verdict
    text: str  # what was found, with values and units
    remedy: str = ""  # empty where nothing is to be done
    ranks: tuple[int, ...] = ()  # that found it; empty where it concerns all ranks or this machine

    @classmethod
    def ok(cls, check: str, text: str) -> Finding:
        """Return a finding that is as it should be."""
        return cls(check=check, verdict=Verdict.OK, text=text)

    @classmethod
    def look(cls, check: str, text: str, remedy: str = "", ranks: Iterable[int] = ()) -> Finding:
        """Return a finding to look at."""
        return cls(check=check, verdict=Verdict.LOOK, text=text, remedy=remedy, ranks=tuple(ranks))

    @classmethod
    def wrong(cls, check: str, text: str, remedy: str = "", ranks: Iterable[int] = ()) -> Finding:
        """Return a finding that is wrong."""
        return cls(check=check, verdict=Verdict.WRONG, text=text, remedy=remedy, ranks=tuple(ranks))


_VERDICT, _CHECK = 5, 30  # widths of the first two columns


def as_text(findings: Sequence[Finding]) -> str:
    """Return a line for each finding, with what to do below it, and a last line with their numbers."""
    width = min(_CHECK, max((len(finding.check) for finding in findings), default=0))
    lines = [as_lines(finding, width) for finding in findings]
    count = Counter(finding.verdict for finding in findings)
    numbers = ", ".join(f"{count[verdict]} {verdict}" for verdict in Verdict)
    ending = "a training would fail or give wrong results" if count[Verdict.WRONG] else "a training can start"
    return "\n".join([*lines, f"{numbers}: {ending}"])


def as_lines(finding: Finding, width: int) -> str:
    """Return one finding as `as_text` does, its check padded to a width."""
    names = rank_names(finding.ranks) if finding.ranks else ""
    whose = f"{names}: " if names and names not in finding.text else ""
    text = f"{finding.verdict:{_VERDICT}}  {finding.check:{width}}  {whose}{' '.join(finding.text.split())}"
    remedy = [f"{'':{_VERDICT}}  {'':{width}}  {line.strip()}" for line in finding.remedy.splitlines()]
    return "\n".join([text, *remedy])


def as_json(findings: Sequence[Finding]) -> str:
    """Return one object: `findings`, a list of objects with the fields of `Finding`, and `ok`."""
    return json.dumps({"findings": [asdict(finding) for finding in findings], "ok": is_ok(findings)})


def is_ok(findings: Sequence[Finding]) -> bool:
    """Say whether no finding is wrong."""
    return all(finding.verdict is not Verdict.WRONG for finding in findings)


def guarded(check: str, call: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return a check's findings; if it raises, also a wrong one with the error."""
    found: list[Finding] = []
    try:
        found.extend(call())  # a generator's findings before its error are kept
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it is, the doctor shows it and continues
        found.append(failed(check, error))
    return found


def found_by(check: str, require: Callable[[], None]) -> list[Finding]:
    """Return the error that a check raises as a wrong finding; nothing if it raises none."""
    return guarded(check, lambda: require() or ())  # type: ignore[func-returns-value]


def failed(check: str, error: BaseException) -> Finding:
    """Return the finding of an error: a user error's first line and what to do, anything else by its type."""
    if shows_traceback():
        traceback.print_exception(error)
    if isinstance(error, PretrainError):
        text, _, remedy = str(error).partition("\n")
        return Finding.wrong(check, text, remedy)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return Finding.wrong(check, text[:300], "PRETRAIN_TRACEBACK=1 shows where.")
