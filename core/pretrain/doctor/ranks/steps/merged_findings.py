"""Findings of all ranks as one list: equal ones once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pretrain.doctor.finding import Finding, Verdict
from pretrain.doctor.ranks.rank_names import rank_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def as_value(finding: Finding) -> dict[str, Any]:
    """Return a finding as a value that JSON knows."""
    return dataclasses.asdict(finding)


def merged(found: Mapping[int, Sequence[Mapping[str, Any]]], world_size: int) -> list[Finding]:
    """Return the findings of all ranks, in the order in which they occur first.

    Equal ones are one finding, with the ranks that have it; without ranks where all have it. Of findings that are ok
    and differ only in their values (free memory, a speed), that of the lowest rank stands for all.

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
    return [finding for findings in kept.values() for finding in _without_repeated_ok(findings, world_size)]


def _without_repeated_ok(findings: list[Finding], world_size: int) -> list[Finding]:
    """Return one check's findings with the ok ones of single ranks as one, where several ranks have others."""
    fine = [each for each in findings if each.verdict is Verdict.OK and each.ranks]
    ranks = [rank for each in fine for rank in each.ranks]
    if len(fine) < 2 or len(set(ranks)) < len(ranks):  # one rank has several: they are about different things
        return findings
    others = rank_names(ranks[len(fine[0].ranks) :])
    text = f"{fine[0].text} ({rank_names(fine[0].ranks)}; ok with other values: {others})"
    one = dataclasses.replace(fine[0], text=text, ranks=() if len(ranks) == world_size else tuple(sorted(ranks)))
    return [one, *(each for each in findings if each not in fine)]
