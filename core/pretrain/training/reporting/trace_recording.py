"""Recordings of profiled steps on one rank: torch.profiler's trace with its summary, or the device's own profiler."""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from pretrain.atomic_files import replacing
from pretrain.report.step_summary import StepSummary, summary_file
from pretrain.report.step_trace import step_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pretrain.plugins.backend import Backend, DeviceProfiler

    Range = Callable[[str], AbstractContextManager[Any]]
    Names = Callable[[Range], AbstractContextManager[None]]


class Recording:
    """Steps that are recorded on this rank, each in a range of its own; `finish` ends all that was opened."""

    def __init__(self, begin: Range, backend: Backend, folder: Path, rank: int, first: int, *, memory: bool) -> None:
        self._range, self._backend, self._folder, self._rank, self._first = begin, backend, folder, rank, first
        self._memory = backend.memory_recorder() if memory else None
        self._open = ExitStack()
        self._step: Any = None

    def _begin(self, names: Names, stop: Callable[[], None]) -> None:
        """Begin what is recorded beside the profiler's own; if it cannot, all ends, the profiler by `stop`."""
        with ExitStack() as opened:
            opened.callback(stop)
            opened.enter_context(names(self._range))
            if self._memory is not None:
                self._memory.start()
            self._open = opened.pop_all()

    def begin_step(self, iteration: int) -> None:
        """Begin the range of a step."""
        self._step = self._range(f"step {iteration}")
        self._step.__enter__()

    def end_step(self) -> None:
        """End the range of a step."""
        self._step.__exit__(None, None, None)

    def finish(self) -> StepSummary | str:
        """End the recording and write its files; return its summary, or a line about it."""
        raise NotImplementedError

    @property
    def _name(self) -> str:
        return f"rank{self._rank}-iteration{self._first}"

    def _end_memory(self) -> None:
        if self._memory is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._memory.stop(self._folder / f"{self._name}.memory.pickle")


class TorchRecording(Recording):
    """torch.profiler's trace, and a snapshot of the device's memory on request."""

    def __init__(self, backend: Backend, folder: Path, rank: int, first: int, names: Names, *, memory: bool) -> None:
        """Begin to record on this rank, before iteration `first`; `names` opens ranges by what it is given."""
        from torch.profiler import ProfilerActivity, profile, record_function, supported_activities  # noqa: PLC0415

        super().__init__(record_function, backend, folder, rank, first, memory=memory)
        activities = [ProfilerActivity.CPU] if backend.device_type == "cpu" else supported_activities()  # type: ignore[no-untyped-call]
        self._last = first
        self._profile = profile(activities=activities, profile_memory=memory)
        with _without_kineto_lines():
            self._profile.prepare_trace()
            self._profile.start_trace()
        self._begin(names, self._stop_trace)

    def _stop_trace(self) -> None:
        with _without_kineto_lines():
            self._profile.stop_trace()

    def begin_step(self, iteration: int) -> None:
        """Begin the range of a step."""
        self._last = iteration
        super().begin_step(iteration)

    def finish(self) -> StepSummary:
        """End the recording, write its files and return the summary; OSError or ValueError: they are not complete."""
        self._open.close()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            trace = self._write_trace(self._folder / f"{self._name}.trace.json.gz")
        finally:
            self._end_memory()
        times = step_times(trace, self._backend.process_group)
        is_cpu = self._backend.device_type == "cpu"
        summary = StepSummary.of(
            times, self._rank, self._first, self._last, device_unseen=not (times.on_device or is_cpu)
        )
        with replacing(summary_file(self._folder, self._rank, self._first), error=None) as stream:
            stream.write(summary.to_json().encode())
        return summary

    def _write_trace(self, path: Path) -> Any:
        """Write the trace, compressed; return its content."""
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".trace-") as folder:
            plain = f"{folder}/trace.json"
            self._profile.export_chrome_trace(plain)
            with open(plain, "rb") as stream:  # noqa: PTH123  a name, as torch takes it
                content = stream.read()
        trace = json.loads(content)
        with replacing(path, error=None) as stream:
            stream.write(gzip.compress(content, compresslevel=3))
        return trace


class DeviceRecording(Recording):
    """What the maker's own profiler records, without a summary here, and a snapshot of memory as `TorchRecording`."""

    def __init__(
        self,
        profiler: DeviceProfiler,
        backend: Backend,
        folder: Path,
        rank: int,
        first: int,
        names: Names,
        *,
        memory: bool,
    ) -> None:
        """Begin to record on this rank."""
        super().__init__(profiler.range, backend, folder, rank, first, memory=memory)
        self.remark = profiler.start()
        self._begin(names, profiler.stop)

    def finish(self) -> str:
        """End the recording; return a line about it."""
        try:
            self._open.close()
        finally:
            self._end_memory()
        return self.remark


@contextmanager
def _without_kineto_lines() -> Iterator[None]:
    """Hide the lines "USDT: ..." that torch's tracer writes to standard error when it starts and stops."""
    sys.stderr.flush()
    own = os.dup(2)
    with ExitStack() as opened:
        opened.callback(os.close, own)
        with suppress(OSError):  # a full disk: the lines stay
            written = opened.enter_context(tempfile.TemporaryFile())
            os.dup2(written.fileno(), 2)
            opened.callback(_show_others, written)
            opened.callback(os.dup2, own, 2)
        yield


def _show_others(written: IO[bytes]) -> None:
    written.seek(0)
    lines = written.read().decode(errors="replace").splitlines(keepends=True)
    sys.stderr.write("".join(line for line in lines if not line.startswith("USDT:")))
