"""Findings of all ranks as one list: equal ones once."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.finding import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MEASURED = frozenset(
    {
        *("device memory", "matmul", "health", "clocks"),
        *("open files", "processes", "shared memory", "locked memory"),
    }
)
"""Checks whose values may differ between ranks that are all well; those of kernels are measurements too."""

DECISIVE = ("torch ", "megatron-core ")
"""Distributions whose versions must be equal: ranks exchange tensors and checkpoints in their formats and order."""


def as_value(finding: Finding) -> dict[str, Any]:
    """Return a finding as a value that JSON knows."""
    return dataclasses.asdict(finding)


def merged(found: Mapping[int, Sequence[Mapping[str, Any]]], world_size: int) -> list[Finding]:
    """Return the findings of all ranks, in the order in which they occur first.

    Equal ones are one finding, with the ranks that have it; without ranks where all have it. Of measurements that are
    ok and differ only in their values (free memory, a speed), that of the lowest rank stands for all. All else
    (versions, drivers, names of devices) must be equal: it is one finding to look at, or a wrong one, with the values.

    Args:
        found: the findings of each rank, as `as_value` returns them.
        world_size: number of all ranks.
    """
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for rank, findings in sorted(found.items()):
        for each in findings:
            key = (each["check"], each["verdict"], each["text"], each["remedy"])
            groups.setdefault(key, []).append(rank)
    kept: dict[str, list[Finding]] = {}
    for (check, verdict, text, remedy), ranks in groups.items():
        whose = () if len(set(ranks)) == world_size else tuple(sorted(set(ranks)))
        finding = Finding(check=check, verdict=Verdict(verdict), text=text, remedy=remedy, ranks=whose)
        kept.setdefault(check, []).append(finding)
    return [finding for findings in kept.values() for finding in _brought_together(findings, world_size)]


def _brought_together(findings: list[Finding], world_size: int) -> list[Finding]:
    """Return one check's findings with the ok ones of single ranks as one, where several ranks have others."""
    fine = [each for each in findings if each.verdict is Verdict.OK and each.ranks]
    ranks = [rank for each in fine for rank in each.ranks]
    if len(fine) < 2 or len(set(ranks)) < len(ranks):  # one rank has several: they are about different things
        return findings
    whose = () if len(ranks) == world_size else tuple(sorted(ranks))
    one = _collapsed(fine) if _is_measured(fine[0].check) else _unequal(fine)
    return [dataclasses.replace(one, ranks=whose), *(each for each in findings if each not in fine)]


def _is_measured(check: str) -> bool:
    return check in MEASURED or check.startswith("kernel")


def _collapsed(fine: list[Finding]) -> Finding:
    first = fine[0]
    others = rank_names([rank for each in fine[1:] for rank in each.ranks])
    text = f"{first.text} ({rank_names(first.ranks)}; ok with other values: {others})"
    return dataclasses.replace(first, text=text)


def _unequal(fine: list[Finding]) -> Finding:
    """Return the finding of software or devices that are right by themselves, and not the same on all ranks."""
    entries = Counter(entry for each in fine for entry in set(each.text.split(", ")))
    different = [entry for entry, count in entries.items() if count < len(fine)]
    verdict = Verdict.WRONG if any(entry.startswith(DECISIVE) for entry in different) else Verdict.LOOK
    listed = "; ".join(f"{rank_names(each.ranks)}: {each.text}" for each in fine)
    remedy = "Take the same software and the same kind of device on all nodes."
    return Finding(check=fine[0].check, verdict=verdict, text=f"not equal on all ranks. {listed}", remedy=remedy)
