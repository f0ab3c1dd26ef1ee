"""A step of the examination that all ranks take together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.tools.doctor.finding import Finding

Answers = dict[int, Any]
"""Values that JSON knows, by the rank that measured them."""


VALUE, ERROR, STUCK = "value", "error", "stuck"
"""Keys of an answer: what was measured; the error; what never ended."""


class Step(Protocol):
    """A step of the examination that all ranks take together."""

    @property
    def name(self) -> str:
        """The subject of the step, in a few words."""

    @property
    def collective(self) -> bool:
        """True if the ranks wait for each other in it, so that an error of one ends the examination."""

    def orders(self, known: Mapping[str, Answers]) -> Any:
        """Return what every rank's `measure` is given, a value that JSON knows; None leaves the step out.

        Called on the leader.

        Args:
            known: the answers to the steps before, by their names.
        """

    def measure(self, orders: Any) -> Any:
        """Return what this rank measures, a value that JSON knows; None where it has no part in it.

        Called on every rank, in a thread. It says what it does (`Board.doing`) before anything that may take seconds.
        """

    def judge(self, answers: Answers) -> Sequence[Finding]:
        """Return the findings; called on the leader with what the ranks have measured."""
