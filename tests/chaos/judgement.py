"""The judgement of a fault: whether the training came through, and else what went wrong."""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from chaos.fault_outcome import restarts_of
from chaos.tiny_training import SAVE_INTERVAL, SAVED
from pretrain.tools.doctor.finding import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaos.bounded_command import End
    from chaos.fault import Ending, Fault
    from chaos.fault_outcome import FaultOutcome
    from chaos.scene import Logged

NOISE = 8.0
"""Factor between the difference of two undisturbed trainings and that which is allowed of one with a fault: both are
draws of the same chance, which two draws do not measure well."""


LIMIT, FACTOR = 90.0, 6.0
"""Seconds that a command with a fault may take: so many, and so many times those of the undisturbed training."""

LIMIT_IN_WORDS = f"the limit ({LIMIT:.0f} s and {FACTOR:.0f} times the undisturbed training)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Undisturbed:
    """The training without a fault.

    Attributes:
        logged: its losses and norms.
        noise: largest relative difference of a second such training; 0.0 where every bit is equal.
    """

    logged: Logged
    noise: float = 0.0


def judge(fault: Fault, outcome: FaultOutcome, undisturbed: Undisturbed) -> Finding:
    """Return the finding: ok, with how it ended, or wrong, with all that must not be."""
    if not outcome.came:
        return Finding(check=fault.name, verdict=Verdict.WRONG, text="; ".join(_not_made(outcome)))
    problems = [
        *_wrong_ends(fault, outcome),
        *_wrong_losses(outcome.logged, undisturbed),
        *_lost_checkpoints(fault, outcome),
        *_lost_steps(fault, outcome),
        *outcome.flaws,
        *_left(outcome),
    ]
    if problems:
        return Finding(check=fault.name, verdict=Verdict.WRONG, text="; ".join(problems))
    return Finding(check=fault.name, verdict=Verdict.OK, text=_how(fault, outcome) + _allowed(outcome, undisturbed))


def may_come_late(outcome: FaultOutcome) -> bool:
    """Say whether a fault that did not come may come at another try: the training was over before, and ended well."""
    ends = (*outcome.ends, *outcome.others)
    return not outcome.came and all(end.exit_code == 0 for end in ends) and not outcome.left and not outcome.flaws


def largest_difference(logged: Logged, other: Logged) -> float:
    """Return the largest relative difference of losses and norms; infinity if they are not of the same iterations."""
    if [line[0] for line in logged] != [line[0] for line in other]:
        return math.inf
    pairs = [pair for line, its in zip(logged, other, strict=True) for pair in zip(line[1:], its[1:], strict=True)]
    return max((_difference(*pair) for pair in pairs), default=0.0)


def _difference(value: float | None, other: float | None) -> float:
    if value is None or other is None:
        return 0.0 if value is other else math.inf
    if not (math.isfinite(value) and math.isfinite(other)):
        return math.inf
    if value == other:
        return 0.0
    return abs(value - other) / max(abs(value), abs(other))


def _wrong_ends(fault: Fault, outcome: FaultOutcome) -> Iterator[str]:
    for number, (end, ending) in enumerate(zip_longest(outcome.ends, fault.endings), start=1):
        which = f"command {number}: " if len(fault.endings) > 1 or len(outcome.ends) > 1 else ""
        if end is None:
            yield f"{which}was not needed"
        elif ending is None:
            yield f"{which}was needed: {_end_in_words(end)}"
        else:
            yield from (f"{which}{problem}" for problem in _wrong_end(end, ending))
    for end in outcome.others:
        if end.exit_code != 0:
            yield f"another node: {_end_in_words(end)}"
    for end in outcome.killed:
        if end.exit_code != -signal.SIGKILL:
            yield f"a node that was to be killed: {_end_in_words(end)}"


def _not_made(outcome: FaultOutcome) -> Iterator[str]:
    """Say why a fault was not there, with what is wrong without it."""
    if outcome.ends and outcome.ends[-1].exit_code != 0:
        yield f"before the fault's moment: {_end_in_words(outcome.ends[-1])}"
    else:
        yield "the fault could not be made: the training was over before its moment, or did not meet it"
    yield from (f"another node: {_end_in_words(end)}" for end in outcome.others if end.exit_code != 0)
    yield from outcome.flaws
    yield from _left(outcome)


def _wrong_end(end: End, ending: Ending) -> Iterator[str]:
    if end.exit_code is None:
        yield _end_in_words(end)
    elif end.exit_code != ending.exit_code:
        yield f"expected is exit code {ending.exit_code}, not {_end_in_words(end)}"
        return
    if (restarts := restarts_of(end)) != ending.restarts:
        yield f"{restarts} restarts instead of {ending.restarts}"
    if missing := ending.missing(end.output):
        yield f"the cause is not named: nothing in the output is {', '.join(map(repr, missing))}"


def _code_in_words(code: int | None) -> str:
    if not code:
        return ""
    number = -code if code < 0 else code - 128
    named = number in set(signal.Signals)
    return f"{signal.Signals(number).name}, exit code {code}" if named else f"exit code {code}"


def _end_in_words(end: End) -> str:
    if end.exit_code is None:
        return f"it did not end within {end.seconds:.0f} s, {LIMIT_IN_WORDS}; last line: {_last_line(end)}"
    return f"exit code {end.exit_code}, last line: {_last_line(end)}"


def _last_line(end: End) -> str:
    lines = [line.strip() for line in end.output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "none"


def _wrong_losses(logged: Logged, undisturbed: Undisturbed) -> Iterator[str]:
    numbers, expected = [line[0] for line in logged], [line[0] for line in undisturbed.logged]
    if numbers != expected:
        missing = sorted(set(expected) - set(numbers))
        yield f"the logged iterations are others: {len(numbers)} lines, missing {missing or 'none'}"
        return
    difference = largest_difference(logged, undisturbed.logged)
    if difference <= NOISE * undisturbed.noise:
        return
    first = next(
        line[0] for line, its in zip(logged, undisturbed.logged, strict=True) if largest_difference((line,), (its,))
    )
    allowed = f", {NOISE * undisturbed.noise:.1g} is allowed" if undisturbed.noise else ""
    yield f"losses differ from the undisturbed ones from iteration {first} on, by up to {difference:.1g}{allowed}"


def _lost_checkpoints(fault: Fault, outcome: FaultOutcome) -> Iterator[str]:
    for number, states in enumerate(outcome.states, start=1):
        is_last = number == len(outcome.states)
        needed = sorted({*outcome.before, *SAVED}) if is_last else outcome.before
        if lost := [each for each in needed if each not in states]:
            yield f"checkpoints are lost: {', '.join(map(str, lost))}"
        spoiled = {outcome.before[-1]} if fault.damages and outcome.before and not is_last else set()
        yield from (damage for each, damage in states.items() if damage and each not in spoiled)


def _lost_steps(fault: Fault, outcome: FaultOutcome) -> Iterator[str]:
    """Say whether more was repeated than no checkpoint has: a start from the beginning gives equal losses, too."""
    most = SAVE_INTERVAL * (2 if fault.damages else 1)
    if outcome.repeated > most:
        yield f"{outcome.repeated} steps were repeated; {most} at most are not in a checkpoint"


def _left(outcome: FaultOutcome) -> Iterator[str]:
    if outcome.left:
        yield f"processes were left behind: {', '.join(map(str, outcome.left))}"


def _allowed(outcome: FaultOutcome, undisturbed: Undisturbed) -> str:
    """Say how much the losses differ, where they may."""
    if not undisturbed.noise:
        return ""
    difference = largest_difference(outcome.logged, undisturbed.logged)
    return f"; losses differ by up to {difference:.1g}, {NOISE * undisturbed.noise:.1g} is allowed"


def _how(fault: Fault, outcome: FaultOutcome) -> str:
    """Say how the training came through."""
    ended = [f"ended with: {line}" for line in _causes(fault, outcome)[:-1] if line]
    restarts, cause = outcome.restarts, _causes(fault, outcome)[-1]
    said = f" ({cause})" if cause else ""
    if len(outcome.ends) > 1:
        repaired = "after what the message says, " if fault.repair is not None else ""
        went_on = f"{repaired}the same command went on{said}"
    elif restarts:
        went_on = f"went on by itself after {restarts} restart{'s' * (restarts > 1)}{said}"
    else:
        went_on = f"went on{said}"
    steps = f"{outcome.repeated} step{'s' * (outcome.repeated != 1)} repeated"
    return "; ".join([*ended, went_on, steps, f"{outcome.seconds:.0f} s"])


def _causes(fault: Fault, outcome: FaultOutcome) -> list[str]:
    """Return the words of each command's output that name the cause, "" where none is expected."""
    return [
        ending.cause(end.output)[:200] or _code_in_words(end.exit_code)
        for end, ending in zip(outcome.ends, fault.endings, strict=True)
    ]
