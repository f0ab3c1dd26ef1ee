"""Findings of the doctor: one line each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Result of a check.

    OK: as it should be.
    LOOK: may be meant, or cost speed; a training runs.
    WRONG: a training would fail, or compute something else; the exit code is 1.
    """

    OK = "ok"
    LOOK = "look"
    WRONG = "wrong"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Result of one check on one rank, or on all of them.

    Attributes:
        check: what was checked, in a few words: "versions", "kernel attention", "all-reduce".
        verdict: see `Verdict`.
        text: what was found, with values and units.
        remedy: what to do; empty where nothing is to be done.
        ranks: those that found it; empty where it concerns all ranks or the machine that the command is given on.
    """

    check: str
    verdict: Verdict
    text: str
    remedy: str = ""
    ranks: tuple[int, ...] = ()
