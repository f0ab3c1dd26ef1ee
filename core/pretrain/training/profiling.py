"""Profiles of a few steps: those of section `profile`, and the next ones at SIGUSR2; nothing is called without one."""

from __future__ import annotations

import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from pretrain.collectives import tree_of_world
from pretrain.errors import BackendError, RecipeError
from pretrain.report.step_summary import FOLDER, StepSummary, summary_text
from pretrain.training.event import Event
from pretrain.training.reporting.meter import synchronize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import FrameType

    from pretrain.engine.protocol import Step
    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.training.event import Due
    from pretrain.training.loop import Training
    from pretrain.training.rank_setup import RankSetup
    from pretrain.training.reporting.trace_recording import Recording

SIGNAL = signal.SIGUSR2
_STEPS_AT_SIGNAL = 3  # where the recipe has no `profile.steps`


class ProfileRequests:
    """Catches SIGUSR2, on which all ranks agree beside the reasons to stop; a context that restores the handler."""

    size = 1

    def __init__(self) -> None:
        self._own = False
        self._agreed = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(SIGNAL, self._remember)
            signal.siginterrupt(SIGNAL, False)  # no system call of a library fails by it
        return self

    def __exit__(self, *_error: object) -> None:
        if self._before is not None:
            signal.signal(SIGNAL, self._before)

    def own(self) -> list[float]:
        """Return 1 if this rank was asked since the last turn."""
        own, self._own = self._own, False
        return [float(own)]

    def agreed(self, sums: Sequence[float]) -> None:
        """Take the number of ranks that were asked."""
        self._agreed = self._agreed or sums[0] > 0

    def take(self) -> bool:
        """Return whether a profile was asked for since the last call, the same on all ranks."""
        agreed, self._agreed = self._agreed, False
        return agreed

    def _remember(self, _number: int, _frame: FrameType | None) -> None:
        self._own = True


def require_profile(setup: RankSetup, run_dir: Path, *, resumed: bool) -> None:
    """Raise a RecipeError or BackendError if the recipe's profile cannot be taken.

    A resumed run may have fewer ranks: those that are left are profiled.
    """
    section, backend, last = setup.recipe.profile, setup.plugins.backend, setup.world.world_size - 1
    if max(section.ranks) > last and not resumed:
        there = f"ranks 0 to {last} are there" if last else "rank 0 is alone"
        msg = f"profile.ranks: there is no rank {max(section.ranks)}: {there}.\nName ranks of this run."
        raise RecipeError(msg)
    if not section.use_pytorch_profiler and backend.profiler(run_dir / FOLDER) is None:
        msg = (
            f"profile.use_pytorch_profiler: false needs a profiler of the device; backend '{backend.name}' has "
            "none.\nLeave the key out: torch's profiler records the trace."
        )
        raise BackendError(msg)


class Profiling(Event):
    """Records the steps of a profile on the ranks that the recipe names, and tells where their time went.

    Each profiled step begins and ends with an idle device, so that all work of the engine lies in it. The first of all
    events: a step's range has their `begin_step` inside, and ends before their `end_step`.
    """

    def __init__(
        self, training: Training, setup: RankSetup, kernels: Kernels, requests: ProfileRequests, run_dir: Path
    ) -> None:
        """Prepare the recipe's profile; nothing of the profiler is imported."""
        self._training, self._kernels, self._requests = training, kernels, requests
        self._backend, self._rank, self._device = setup.plugins.backend, setup.world.rank, setup.device
        self._section, self._folder = setup.recipe.profile, run_dir / FOLDER
        self._steps = self._planned = range(self._section.start, self._section.start + self._section.steps)
        self._is_profiling = False
        self._recording: Recording | None = None
        self._error: Exception | None = None  # of this rank's profile: told at its end, since it ends no training

    def note_missing(self) -> None:
        """Tell of what will be missing, and of a profile that never comes."""
        if self._section.memory and self._backend.memory_recorder() is None:
            rest = "; the trace has the sizes of tensors" if self._section.use_pytorch_profiler else ""
            self._training.meter.logger.note(
                f"profile.memory: backend '{self._backend.name}' keeps no record of its allocations: there will be no "
                f"snapshot{rest}."
            )
        self._note_missed()

    def _note_missed(self) -> None:
        """Tell of a profile that never comes, in a training that has steps."""
        done, last = self._training.progress.iteration, self._training.length.iterations
        if not self._planned or done >= last:
            return
        if done >= self._planned[-1]:
            why = f"the run has passed iteration {self._planned[-1]}, the profile's last one"
        elif self._planned[0] > last:
            why = f"the training ends after iteration {last}"
        else:
            return
        self._training.meter.logger.note(
            f"profile.start: {self._planned[0]}: no profile is taken: {why}. For one, send SIGUSR2, or set "
            f"profile.start between {done + 1} and {last}."
        )

    def begin_step(self) -> None:
        """Begin to record if a profile begins here; one that a rollback has left ends."""
        iteration = self._training.progress.iteration + 1
        if self._is_profiling and iteration not in self._steps:
            self._finish()
        if not self._is_profiling:
            if self._requests.take():
                self._steps = range(iteration, iteration + (self._section.steps or _STEPS_AT_SIGNAL))
            if iteration not in self._steps:
                return
            self._is_profiling = True
            if self._rank in self._section.ranks:
                self._attempt(partial(self._start, iteration))
        if self._recording is not None:
            synchronize(self._device)
            self._attempt(partial(self._recording.begin_step, iteration))

    def end_step(self, iteration: int, step: Step) -> None:  # noqa: ARG002  an event's signature
        """End the range of a profiled step."""
        if self._recording is not None:
            synchronize(self._device)
            self._attempt(self._recording.end_step)

    def after_iteration(self, due: Due) -> bool:
        """End the profile after its last step, or before the training leaves."""
        if self._is_profiling and (due.iteration >= self._steps[-1] or due.reason):
            self._finish()
        return False

    def end(self, reason: str) -> None:  # noqa: ARG002  an event's signature
        """End a profile that has more steps than the training."""
        if self._is_profiling:
            self._finish()

    def _start(self, iteration: int) -> None:
        from pretrain.training.reporting.trace_ranges import named_ranges  # noqa: PLC0415  only for a profile
        from pretrain.training.reporting.trace_recording import DeviceRecording, TorchRecording  # noqa: PLC0415

        training, backend = self._training, self._backend
        names = partial(named_ranges, training.engine.models, self._kernels, training.meter.timers)
        profiler = None if self._section.use_pytorch_profiler else backend.profiler(self._folder)
        place, memory = (backend, self._folder, self._rank, iteration, names), self._section.memory
        if profiler is None:
            self._recording = TorchRecording(*place, memory=memory)
        else:
            self._recording = DeviceRecording(profiler, *place, memory=memory)

    def _attempt(self, part: Callable[[], None]) -> None:
        """Do a part of the recording, unless one has failed: whatever a profiler raises, the training goes on."""
        try:
            if self._error is None:
                part()
        except Exception as error:  # noqa: BLE001
            self._error = error

    def _finish(self) -> None:
        """Write what was recorded, and have rank 0 tell it; all ranks call it together."""
        meter = self._training.meter
        with meter.pausing(), meter.timers.position.during("save"):
            told = tree_of_world().gathered(self._written()) or []
        self._is_profiling, self._recording, self._error, self._steps = False, None, None, self._planned
        self._requests.take()  # signals reach the ranks at different moments
        for text in filter(None, told):
            meter.logger.note(text)

    def _written(self) -> str | None:
        """Write the recording of this rank, or end it where it has failed; return what is to be told about it."""
        found: StepSummary | str | None = None
        try:
            found = None if self._recording is None else self._recording.finish()
        except Exception as error:  # noqa: BLE001  a full disk, a trace that was cut off, a failure of the profiler
            self._error = self._error or error
        if self._error is not None:
            whole = f"{type(self._error).__name__}: {self._error}".splitlines()[0].rstrip(": ")
            reason = getattr(self._error, "strerror", None) or whole
            return (
                f"warning: the profile of rank {self._rank} is missing in {self._folder}, or not complete ({reason}). "
                "The training continues."
            )
        is_first = self._rank == min(self._section.ranks)
        return summary_text(found, parts=is_first) if isinstance(found, StepSummary) else found
