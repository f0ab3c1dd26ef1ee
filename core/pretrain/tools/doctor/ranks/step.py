"""A step of the examination that all ranks take together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.finding import Finding, Verdict, guarded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Answers = dict[int, Any]
"""Values that JSON knows, by the rank that measured them."""


VALUE, ERROR, STUCK = "value", "error", "stuck"
"""Keys of an answer: what was measured; the error; what never ended."""


class ExaminationStep:
    """A step of the examination that all ranks take together.

    Attributes:
        name: its subject, in a few words.
        collective: whether the ranks wait for each other in it, so that an error of one ends the examination.
    """

    name: ClassVar[str]
    collective: ClassVar[bool] = False

    def orders(self, known: Mapping[str, Answers]) -> Any:  # noqa: ARG002  most steps need nothing
        """Return what every rank's `measure` is given, a value that JSON knows; None leaves the step out.

        Called on the leader.

        Args:
            known: the answers to the steps before, by their names.
        """
        return {}

    def measure(self, orders: Any) -> Any:
        """Return what this rank measures, a value that JSON knows; None where it has no part in it.

        Called on every rank, in a thread. It says what it does (`StatusBoard.doing`) before what may take seconds.
        """
        raise NotImplementedError

    def judge(self, answers: Answers) -> Sequence[Finding]:
        """Return the findings; called on the leader with what the ranks have measured."""
        raise NotImplementedError


def taking_part(answers: Answers) -> Answers:
    """Return the answers of the ranks that had a part in a step."""
    return {rank: each for rank, each in answers.items() if each is not None}


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a step.

    Attributes:
        step: that has ended.
        given: the answers of the ranks that have answered, as `StepWorker` writes them.
        silent: a finding about each rank that is silent.
    """

    step: ExaminationStep
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
        remedy = "a training would fail in the same way"
        return Finding(check=self.step.name, verdict=Verdict.WRONG, text=text, remedy=remedy, ranks=tuple(ranks))

    def _stuck(self, doing: str, ranks: list[int], timeout: float) -> Finding:
        return Finding(
            check=self.step.name,
            verdict=Verdict.WRONG,
            text=f"{rank_names(ranks)}: {doing} did not finish within {timeout:g} s",
            remedy="all ranks are alive: look at the network between them, and at the log of the communication library"
            if self.step.collective
            else "a device, a network or a file system does not answer",
            ranks=tuple(ranks),
        )
