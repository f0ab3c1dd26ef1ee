"""The first step: findings of the ranks' own checks, brought together."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.ranks.steps.merged_findings import as_value, merged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.tools.doctor.ranks.step import Answers


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OwnStep:
    """Findings of the ranks' own checks, brought together; answered without the leader's order.

    Attributes:
        own: of this rank.
        has_device: whether this rank has its device, without which neither speed nor links are measured.
        world_size: number of ranks.
    """

    own: Sequence[Finding]
    has_device: bool
    world_size: int
    name = "checks of each rank"
    collective = False

    def orders(self, known: Mapping[str, Answers]) -> Any:  # noqa: ARG002  nothing is known yet
        """Return nothing of interest."""
        return {}

    def measure(self, orders: Any) -> Any:  # noqa: ARG002
        """Return this rank's findings, which it has made already."""
        return {"findings": [as_value(finding) for finding in self.own], "device": self.has_device}

    def judge(self, answers: Answers) -> list[Finding]:
        """Return the findings of all ranks, equal ones once."""
        found = merged({rank: each["findings"] for rank, each in answers.items()}, self.world_size)
        without = [rank for rank, each in answers.items() if not each["device"]]
        if without and self.world_size > 1:
            text = f"speed and links are not measured: {rank_names(without)} without a device"
            remedy = "see what is said of the device"
            found.append(Finding(check="links", verdict=Verdict.LOOK, text=text, remedy=remedy, ranks=tuple(without)))
        return found


def all_have_devices(known: Mapping[str, Answers]) -> bool:
    """Say whether every rank has its device."""
    return all(each["device"] for each in known[OwnStep.name].values())
