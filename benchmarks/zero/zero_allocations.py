"""Record the bytes that torch's CPU allocator has given out, over time.

The CPU has no allocator statistic, but the allocator can report every block to the profiler, with the sum so far
(ProfiledCPUMemoryReporter in c10/core/CPUAllocator.cpp). That includes all tensors, also temporary ones inside one
operation. Memory that C++ code allocates for itself (gloo, DeepSpeed's CPU Adam) is not in it.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function


class Allocations:
    """Bytes allocated in the with-block, by phase; blocks from before it do not count, even when they are freed."""

    def __enter__(self) -> Allocations:
        _report_all_threads(True)
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.__enter__()
        return self

    @contextmanager
    def phase(self, name: str):
        """Name the block's allocations; an engine takes this object as its timers."""
        with record_function(name):
            yield

    def __exit__(self, *exception) -> None:
        self._profile.__exit__(*exception)
        _report_all_threads(False)
        blocks = []  # when, bytes, sum since the process began
        self._phases: dict[str, tuple[int, int]] = {}
        waiting = list(self._profile.profiler.kineto_results.experimental_event_tree())
        while waiting:
            event = waiting.pop()
            waiting += event.children
            if event.tag.name == "Allocation":
                blocks.append((event.start_time_ns, event.typed[1].alloc_size, event.typed[1].total_allocated))
            elif event.tag.name == "TorchOp" and event.typed[1].scope.name == "USER_SCOPE":
                self._phases[event.name] = (event.start_time_ns, event.end_time_ns)
        blocks.sort()
        before = blocks[0][2] - blocks[0][1] if blocks else 0
        self._sums = [(when, total - before) for when, _, total in blocks]

    def peak(self, phase: str) -> int:
        """Return the most bytes that were allocated at once in a phase."""
        start, end = self._phases[phase]
        return max(self._at(start), *(total for when, total in self._sums if start <= when <= end))

    def after(self, phase: str) -> int:
        """Return the bytes that were allocated when a phase ended."""
        return self._at(self._phases[phase][1])

    def _at(self, moment: int) -> int:
        return next((total for when, total in reversed(self._sums) if when <= moment), 0)


def _report_all_threads(value: bool) -> None:
    """Count blocks that a thread without the profiler frees, too: gloo's often holds the last reference to one."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    ctypes.c_bool.in_dll(library, "FLAGS_caffe2_report_cpu_memory_usage").value = value
