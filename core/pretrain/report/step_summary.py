"""Summary of profiled steps: a small file in the run directory, the table on the screen, the picture in the report."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Self

from pretrain.report.environment_file import FILE as ENVIRONMENT
from pretrain.report.step_trace import COMMUNICATION, PHASES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pretrain.report.step_trace import StepTimes

FOLDER = "profile"
"""Traces and summaries, in the run directory."""
UNSEEN = "torch.profiler has seen nothing of the device: these are the host's seconds (docs/profiling.md)"
_SHOWN = 12  # parts in the table on the screen
_WIDTH = 62


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPart:
    """A share of a step."""

    phase: str  # of `step_trace.PHASES`
    part: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSummary:
    """The mean of the steps of one profile on one rank."""

    rank: int
    first_iteration: int
    last_iteration: int
    seconds: float  # of a step
    launches: float  # of a step: kernels on the device, or calls of operators on the host
    communication: float  # seconds of a step in which a collective ran; the exposed part is a phase of `parts`
    on_device: bool
    device_unseen: bool  # there is a device, of which torch.profiler has recorded nothing: the seconds are the host's
    parts: tuple[StepPart, ...]  # the longest first; their sum is `seconds`

    @classmethod
    def of(cls, times: StepTimes, rank: int, first: int, last: int, *, device_unseen: bool) -> Self:
        """Return the summary of a trace."""
        longest = sorted(times.parts.items(), key=lambda item: -item[1])
        return cls(
            rank=rank,
            first_iteration=first,
            last_iteration=last,
            seconds=times.seconds,
            launches=times.launches,
            communication=times.communication,
            on_device=times.on_device,
            device_unseen=device_unseen,
            parts=tuple(StepPart(phase=owner.phase, part=owner.part, seconds=each) for owner, each in longest),
        )

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps(asdict(self), indent=1)

    @property
    def title(self) -> str:
        """Rank, iterations and seconds: "rank 0, iterations 10 to 12: 0.412 s a step"."""
        to = f"s {self.first_iteration} to {self.last_iteration}" * (self.last_iteration > self.first_iteration)
        return f"rank {self.rank}, iteration{to or f' {self.first_iteration}'}: {self.seconds:.3f} s a step"

    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds by phase, in the order of `PHASES`, without those that have none."""
        seconds: dict[str, float] = defaultdict(float)
        for part in self.parts:
            seconds[part.phase] += part.seconds
        return {phase: seconds[phase] for phase in PHASES if seconds[phase]}

    @property
    def counts(self) -> str:
        """Launches and communication, as one line."""
        calls = "kernels launched" if self.on_device else "operator calls"
        line = f"{self.launches:,.0f} {calls} a step"
        if round(self.communication, 3):
            exposed = self.phases.get(COMMUNICATION, 0.0)
            line += f"; collectives run for {self.communication:.3f} s a step, {exposed:.3f} s of it exposed"
        return line


def phase_name(phase: str) -> str:
    """Return how a phase is shown."""
    return "communication, exposed" if phase == COMMUNICATION else phase


def read_summary(path: Path) -> StepSummary:
    """Return the summary of a file; raises ValueError, KeyError, TypeError or OSError where it is none."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return StepSummary(**{**content, "parts": tuple(StepPart(**part) for part in content["parts"])})


def summary_file(folder: Path, rank: int, first_iteration: int) -> Path:
    """Return the file of a summary; that of its trace begins alike."""
    return folder / f"rank{rank}-iteration{first_iteration}.json"


def latest_summaries(run_dir: Path) -> list[StepSummary]:
    """Return the summaries of the profile that was written last, by rank; files that cannot be read are passed over.

    Ranks that only an earlier start of the run had are left out: environment.json is written at each start.
    """
    written: list[tuple[float, StepSummary]] = []
    for path in (run_dir / FOLDER).glob("rank*-iteration*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            written.append((path.stat().st_mtime, read_summary(path)))
    if not written:
        return []
    last, latest = max(written, key=itemgetter(0))
    environment = run_dir / ENVIRONMENT
    start = environment.stat().st_mtime if environment.exists() else 0.0
    found = [
        summary
        for when, summary in written
        if summary.first_iteration == latest.first_iteration and (when >= start or last < start)
    ]
    return sorted(found, key=attrgetter("rank"))


def summary_text(summary: StepSummary, *, parts: bool) -> str:
    """Return the table for the screen, with the longest parts or without."""
    return "\n".join(_lines(summary, parts=parts))


def _lines(summary: StepSummary, *, parts: bool) -> Iterator[str]:
    def row(name: str, seconds: float, indent: str) -> str:
        return f"{indent}{name:<{_WIDTH - len(indent)}} {seconds:9.4f} s {seconds / summary.seconds:6.1%}"

    yield f"profile of {summary.title}, {summary.counts}"
    if summary.device_unseen:
        yield f"  {UNSEEN}"
    for phase, seconds in summary.phases.items():
        yield row(phase_name(phase), seconds, "  ")
    if not parts:
        return
    yield "  longest parts:"
    for part in summary.parts[:_SHOWN]:
        is_phase = part.part.partition(":")[0] == part.phase  # "optimizer: fused (pretrain)"
        yield row(part.part if is_phase else f"{part.phase} {part.part}", part.seconds, "    ")
    rest = summary.parts[_SHOWN:]
    if rest:
        yield row(f"{len(rest)} others", sum(part.seconds for part in rest), "    ")
