"""Result of a comparison: what differs, and which kernel calls are wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.align.recording.folder import ModulePlace

Order = tuple[int, int, int, int]  # step, phase of the step, position along the phase's direction, and order there
FORWARD, LOSS, BACKWARD, GRADIENTS, NORM, UPDATE = range(6)  # phases of a step in the order of computation
SIDES = ("first", "second")
PHASES = ("forward", "loss", "backward", "gradients of the parameters", "gradient norm", "update")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ordered:
    order: Order

    @property
    def step(self) -> int:
        return self.order[0]

    @property
    def phase(self) -> str:
        return PHASES[self.order[1]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared(_Ordered):
    """One comparison of the two sides."""

    place: ModulePlace | None = None  # of the module; None for what belongs to the whole model
    operation: str = ""  # whose call it is; "" for other values
    what: str  # "output of norm in input_layernorm"
    difference: float
    explained: float
    ticks: tuple[int, int] | None = None  # in the order of computation of each side, where it is an activation's
    entries: tuple[int, int] | None = None  # compared ones of all, where they are not all

    @property
    def share(self) -> float:
        """The difference as a part of what is explained."""
        return self.difference / self.explained if self.explained else float(self.difference > 0)

    @property
    def differs(self) -> bool:
        """True if the difference is not explained, or is no number."""
        return not self.difference <= self.explained


@dataclass(frozen=True, kw_only=True, slots=True)
class WrongCall(_Ordered):
    """A kernel call whose result differs from float64's for the same inputs by more than is explained."""

    side: int  # 0 or 1
    rank: int
    place: ModulePlace
    operation: str
    what: str  # "output", "gradient of x", or what of the optimizer
    error: float  # relative; infinite for a missing gradient
    explained: float
    call: int = 0  # number of the operation's call in the module, from 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignResult:
    """Result of a comparison."""

    compared: Sequence[Compared]  # everything that was, in order of computation
    wrong: Sequence[WrongCall] = ()  # calls of one side that are not what float64 gives, in order of computation
    alike: Sequence[WrongCall] = ()  # those that both sides get wrong
    skipped: Sequence[str] = ()  # what is not compared and why, in words
    notes: Sequence[str] = ()
    unchecked: str = ""  # reason that the first difference may be of a call that was not checked by itself

    @property
    def first(self) -> Compared | None:
        """The first comparison that differs; None where the sides are aligned."""
        return next((each for each in self.compared if each.differs), None)

    @property
    def cause(self) -> WrongCall | None:
        """The first wrong call of one side alone."""
        return self.wrong[0] if self.wrong else None

    @property
    def is_explained_by_cause(self) -> bool:
        """True if there is a wrong call, and nothing differs at an earlier place."""
        cause, first = self.cause, self.first
        if cause is None or first is None:
            return cause is not None
        # In the order of computation of the call's side.
        tick = first.order[3] if first.ticks is None else first.ticks[cause.side]
        return cause.order <= (*first.order[:3], tick)

    @property
    def is_aligned(self) -> bool:
        """True if nothing differs."""
        return self.first is None and self.cause is None
