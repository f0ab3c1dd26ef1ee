"""All faults, one after the other, and what is found of each."""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chaos.fault_trial import FaultTrial
from chaos.judgement import FACTOR, LIMIT, Undisturbed, judge, largest_difference, may_come_late
from chaos.planted import Kind
from chaos.rank_faults import without_full_disk
from chaos.tiny_training import SAVED
from pretrain.errors import RunError
from pretrain.tools.doctor.finding import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chaos.fault import Fault
    from chaos.fault_outcome import FaultOutcome
    from chaos.scene import Logged
    from chaos.tiny_training import TinyTraining

FIRST_LIMIT = 300.0
"""Seconds that the undisturbed training may take: nothing is known of the machine yet."""

TRIES = 3
"""Times that a fault is tried whose training is over before it comes."""

MOST_NOISE = 1e-2
"""Relative difference of two undisturbed trainings above which losses show nothing."""

_KEPT = "kept"
"""File whose presence keeps the folder."""


@contextmanager
def work_folder(parent: Path | None) -> Iterator[Path]:
    """Make a folder for all trainings, and remove it at the end; with a finding that is wrong it stays.

    Args:
        parent: where; None: the system's folder of temporary files.

    Raises:
        RunError: it cannot be made.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="pretrain-faults-", dir=parent)).absolute()
    except OSError as error:
        named = f"--folder {parent}" if parent else _system_folder()
        msg = f"{named}: no folder can be made there: {error.strerror}.\nLet --folder name one that is writable."
        raise RunError(msg) from error
    try:
        yield folder
    finally:
        if not (folder / _KEPT).exists():
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():
                click.echo(f"{folder} could not be removed.", err=True)


def _system_folder() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:  # not one of those that are usual is writable
        return "temporary files"


@dataclass(kw_only=True, slots=True)
class AllFaults:
    """Faults that are tried in one folder.

    Attributes:
        training: that they are tried on, prepared.
        faults: in their order.
        one_node: reason that this machine cannot be two nodes, for which a fault is left out then; "" if it can.
    """

    training: TinyTraining
    faults: Sequence[Fault]
    one_node: str
    _undisturbed: Undisturbed | None = None
    _limit: float = FIRST_LIMIT
    _noise_is_known: bool = False

    def run(self) -> Iterator[Finding]:
        """Yield a finding for the undisturbed training, and if that is ok, for each fault as it ends."""
        outcome = self._outcome("undisturbed", None)
        finding = undisturbed_finding(outcome)
        yield self._kept(finding)
        if finding.verdict is not Verdict.OK:
            return
        if not outcome.seen:
            yield Finding(check="processes", verdict=Verdict.LOOK, text=_UNSEEN)
        self._undisturbed = Undisturbed(logged=outcome.logged)
        self._limit = LIMIT + FACTOR * outcome.seconds
        for fault in self.faults:
            if why := self._left_out(fault):
                yield Finding(check=fault.name, verdict=Verdict.LOOK, text=f"left out: {why}")
            else:
                yield from map(self._kept, self._findings(fault, self._undisturbed))

    def _left_out(self, fault: Fault) -> str:
        """Return the reason that a fault cannot be made here; "" if it can."""
        if fault.nodes > 1:
            return self.one_node
        return without_full_disk(self.training.folder) if fault.planted is Kind.FULL_DISK else ""

    def _findings(self, fault: Fault, undisturbed: Undisturbed) -> Iterator[Finding]:
        for number in range(1, TRIES + 1):
            outcome = self._outcome(f"{fault.name} {number}", fault)
            if not may_come_late(outcome):
                break
        differs = outcome.came and outcome.logged != undisturbed.logged
        if differs and not self._noise_is_known:
            again = self._outcome("undisturbed again", None)
            finding, noise = second_finding(again, undisturbed.logged)
            if finding.verdict is not Verdict.OK:
                yield finding
            self._noise_is_known = True
            undisturbed = self._undisturbed = Undisturbed(logged=undisturbed.logged, noise=noise)
        yield judge(fault, outcome, undisturbed)

    def _outcome(self, name: str, fault: Fault | None) -> FaultOutcome:
        folder = self.training.folder / re.sub(r"\W+", "-", name)
        return FaultTrial(self.training, folder, fault, self._limit).run()

    def _kept(self, finding: Finding) -> Finding:
        """Return the finding; where it is wrong, with the folder of the outputs, which is kept."""
        if finding.verdict is Verdict.OK:
            return finding
        (self.training.folder / _KEPT).touch()
        remedy = f"The outputs are in {self.training.folder}."
        return Finding(check=finding.check, verdict=finding.verdict, text=finding.text, remedy=remedy)


_UNSEEN = (
    "processes cannot be seen here: their variables in /proc cannot be read, so that a training may leave some behind "
    "unnoticed"
)


def second_finding(again: FaultOutcome, logged: Logged) -> tuple[Finding, float]:
    """Return the finding of a second undisturbed training, and the noise: whether this device gives equal bits twice.

    Where the finding is wrong the noise is 0.0, so that it excuses nothing.
    """
    finding = undisturbed_finding(again, "undisturbed again")
    if finding.verdict is not Verdict.OK:
        return finding, 0.0
    noise = largest_difference(again.logged, logged)
    if noise <= MOST_NOISE:
        return finding, noise
    text = f"two undisturbed trainings differ by {noise:.1g}, {MOST_NOISE:g} is the most; losses cannot be judged"
    return Finding(check="undisturbed again", verdict=Verdict.WRONG, text=text), 0.0


def undisturbed_finding(outcome: FaultOutcome, check: str = "undisturbed") -> Finding:
    """Return the finding of the training without a fault: it ends well, with a loss and all of its checkpoints."""
    (end,) = outcome.ends
    problems = []
    if end.exit_code != 0:
        code = "no end within its limit" if end.exit_code is None else f"exit code {end.exit_code}"
        problems.append(f"{code} after {end.seconds:.0f} s; last line: {' '.join(end.output.split()[-30:])}")
    elif [each for each in SAVED if outcome.states[-1].get(each) != ""] or not outcome.logged:
        problems.append("it ended without its checkpoints or losses")
    elif not all(math.isfinite(number) for line in outcome.logged for number in line if number is not None):
        problems.append("its losses or norms are not finite")
    if end.exit_code == 0:
        problems += outcome.flaws
    if outcome.restarts:
        problems.append(f"{outcome.restarts} restarts, though nothing was done to it")
    if end.left:
        problems.append(f"processes were left behind: {', '.join(map(str, end.left))}")
    if problems:
        return Finding(check=check, verdict=Verdict.WRONG, text="; ".join(problems))
    text = f"{len(outcome.logged)} iterations, {len(SAVED)} checkpoints, {end.seconds:.0f} s"
    return Finding(check=check, verdict=Verdict.OK, text=text)
