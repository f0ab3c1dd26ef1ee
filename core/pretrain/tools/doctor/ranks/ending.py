"""The end of a step: answers of all ranks, or the ranks that did not give one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.guard import guarded
from pretrain.tools.doctor.ranks.own_part import ERROR, STUCK, VALUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.doctor.ranks.step import Answers, Step


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a step.

    Attributes:
        step: that has ended.
        given: the answers of the ranks that have answered, as `own_part` writes them.
        silent: a finding about each rank that is silent.
    """

    step: Step
    given: Mapping[int, Mapping[str, Any]]
    silent: list[Finding] = field(default_factory=list)

    @property
    def values(self) -> Answers:
        """The measured values, by rank."""
        return {rank: answer[VALUE] for rank, answer in sorted(self.given.items()) if VALUE in answer}

    @property
    def is_last(self) -> bool:
        """True if no further step can be taken together."""
        stuck = any(STUCK in answer for answer in self.given.values())
        failed = any(ERROR in answer for answer in self.given.values())
        return bool(self.silent) or stuck or (failed and self.step.collective)

    def findings(self, timeout: float) -> list[Finding]:
        """Return the findings of the step: the judgement, and about ranks without a value the cause alone."""
        judged = guarded(self.step.name, lambda: self.step.judge(self.values)) if self.values else []
        if self.silent and self.step.collective:
            return [*judged, *self.silent]  # that other ranks failed or waited is the consequence
        errors = self._of(ERROR)
        found = [self._error(text, ranks) for text, ranks in errors.items()]
        if not (self.silent or errors):
            found += [self._stuck(doing, ranks, timeout) for doing, ranks in self._of(STUCK).items()]
        return [*judged, *found, *self.silent]

    def _of(self, kind: str) -> dict[str, list[int]]:
        """Return the ranks of each text of a kind of answer."""
        found: dict[str, list[int]] = {}
        for rank, answer in sorted(self.given.items()):
            if kind in answer:
                found.setdefault(answer[kind], []).append(rank)
        return found

    def _error(self, text: str, ranks: list[int]) -> Finding:
        remedy = "the training would do the same and fail"
        return Finding(check=self.step.name, verdict=Verdict.WRONG, text=text, remedy=remedy, ranks=tuple(ranks))

    def _stuck(self, doing: str, ranks: list[int], timeout: float) -> Finding:
        return Finding(
            check=self.step.name,
            verdict=Verdict.WRONG,
            text=f"{rank_names(ranks)}: no end within {timeout:g} s of: {doing}",
            remedy="all ranks live: look at the network between them, and at the log of the library that connects them"
            if self.step.collective
            else "look at what it needs: a device, a network or a file system that does not answer",
            ranks=tuple(ranks),
        )
