"""Findings as lines for people, and as JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.finding import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretrain.tools.doctor.finding import Finding

_VERDICT, _CHECK = 5, 30
"""Widths of the first two columns."""


def as_text(findings: Sequence[Finding]) -> str:
    """Return a line for each finding, with what to do below it, and a last line with their numbers."""
    width = min(_CHECK, max((len(finding.check) for finding in findings), default=0))
    lines = [line for finding in findings for line in _lines(finding, width)]
    count = Counter(finding.verdict for finding in findings)
    numbers = ", ".join(f"{count[verdict]} {verdict}" for verdict in Verdict)
    ending = "a training would fail, or compute something else" if count[Verdict.WRONG] else "a training can start"
    return "\n".join([*lines, f"{numbers}: {ending}"])


def as_lines(finding: Finding, width: int) -> str:
    """Return one finding as `as_text` does, its check padded to a width."""
    return "\n".join(_lines(finding, width))


def as_json(findings: Sequence[Finding]) -> str:
    """Return one object: `findings`, a list of objects with the fields of `Finding`, and `ok`."""
    return json.dumps({"findings": [asdict(finding) for finding in findings], "ok": is_ok(findings)})


def is_ok(findings: Sequence[Finding]) -> bool:
    """Say whether no finding is wrong."""
    return all(finding.verdict is not Verdict.WRONG for finding in findings)


def _lines(finding: Finding, width: int) -> Iterator[str]:
    names = rank_names(finding.ranks) if finding.ranks else ""
    whose = f"{names}: " if names and names not in finding.text else ""
    yield f"{finding.verdict:{_VERDICT}}  {finding.check:{width}}  {whose}{' '.join(finding.text.split())}"
    for line in finding.remedy.splitlines():
        yield f"{'':{_VERDICT}}  {'':{width}}  {line.strip()}"
