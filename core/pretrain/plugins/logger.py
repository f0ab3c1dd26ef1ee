"""The interface of loggers: what they are told of a training, on rank 0 alone.

A logger is called in one order from one thread of its own, so that no step waits for it; of one that is slow, records
beyond 1,000 that wait are lost. Its first exception is shown as a warning, and the training goes on: only one from
`check`, or from `start` of a new run, ends it. A resumed run tries `start` again, at most once a minute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pretrain.atomic_files import replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """Numbers of a training after an iteration."""

    # a logged interval; an evaluation of one split; times of phases; a task of lm-evaluation-harness
    kind: Literal["train", "eval", "timers", "task"]
    iteration: int  # iterations done since the training began
    consumed_samples: int  # sequences read until then
    # Every number by the name of its curve, Megatron-LM's where that has it: "lm loss", "lm loss validation ppl",
    # "forward-backward-time" (milliseconds), "moe-dropped/layer 2". It may be nan or infinite.
    curves: Mapping[str, float]
    by_samples: Collection[str] = ()  # those that Megatron-LM draws over samples too
    line: Mapping[str, Any] = field(default_factory=dict)  # line of metrics.jsonl (docs/metrics.md); none for timers


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedEvent:
    """Something that happened to a training, which continues after `iteration`."""

    name: str  # "loss_spike", "rollback", "straggler", "resume"
    iteration: int
    text: str  # one sentence or more, for people
    line: Mapping[str, Any] = field(default_factory=dict)  # line of metrics.jsonl, where it has one


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Place from which a training continues, so that what was logged of later iterations comes once more."""

    iteration: int  # iterations that stay
    consumed_samples: int = 0
    left_out: Sequence[Sequence[int]] = ()  # first and last iteration of stretches that a rollback left out


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A training as its loggers see it."""

    directory: Path
    resumed: Point | None = None  # where a run of this directory continues; None: a new run
    note: Callable[[str], None]  # shows a line between those of the metrics; may be called from any thread

    @property
    def name(self) -> str:
        """The run directory's name, such as "gpt3-20260131-1200"."""
        return self.directory.resolve().name

    def kept(self, logger: str) -> str:
        """Return what `keep` wrote for a logger before the run was stopped, or an empty string."""
        try:
            return (self.directory / "loggers" / logger).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""

    def keep(self, logger: str, text: str) -> None:
        """Write one line into the run directory: the id with which a resumed run continues the same remote run."""
        with replacing(self.directory / "loggers" / logger) as stream:
            stream.write(f"{text}\n".encode())


class Logger:
    """A place to which a run's metrics go; a subclass overrides what it needs.

    It is made before the run directory exists, by `--dry-run` too: a constructor only keeps its arguments. `check` is
    called where the ranks are started; all others on rank 0, in the order of what happens.
    """

    def check(self) -> None:
        """Raise pretrain.errors.RunError with what to do (a package or a login is missing); cheap, and changes nothing.

        Not called when a run is resumed: a service that is down then costs its curves, not the training.
        """

    def start(self) -> None:
        """Open files, connect; begin the remote run or, if `Run.resumed`, continue it."""

    def metrics(self, metrics: Metrics) -> None:
        """Take numbers; iterations rise, but for those that come again after `go_back` or a resume."""

    def event(self, event: LoggedEvent) -> None:
        """Take something that happened."""

    def artifact(self, file: Path) -> None:
        """Take a file of the run directory: recipe.yml and environment.json at start, report.html at the end."""

    def go_back(self, to: Point) -> None:
        """Take notice that the training goes on from an earlier iteration (`train.loss_spike.action: rollback`)."""

    def finish(self, *, failed: bool) -> None:
        """Send what waits, and close; `failed` if an error ends the training.

        All loggers together are waited for, up to a minute; 5 seconds after an error. Where another rank has failed,
        the launcher may end rank 0 earlier, or before this is called.
        """
