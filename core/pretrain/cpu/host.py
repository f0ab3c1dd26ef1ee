"""Facts about this machine and this process from the operating system."""

from __future__ import annotations

import os
import platform
import resource
from contextlib import suppress
from pathlib import Path

from pretrain.plugins.backend import Memory

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_CPUINFO = Path("/proc/cpuinfo")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def cpu_model() -> str:
    """Return the CPU's name, or its architecture if the system does not report the name."""
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory(*, reset_peak: bool) -> Memory:
    """Return the resident set of this process and the memory of the machine, or of its container.

    Outside Linux the peak is that of the whole process, because it cannot be reset, and the memory in use is unknown.
    """
    if not _STATUS.exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Bytes on macOS, KiB elsewhere.
        return Memory(allocated=None, peak=peak if platform.system() == "Darwin" else peak * 1024, total=_total())
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    if reset_peak:
        with suppress(OSError):  # a container may forbid it; then the peak is that of the whole process
            _CLEAR_REFS.write_text("5")  # man 5 proc: resets VmHWM to the current resident set
    return Memory(allocated=_bytes(fields["VmRSS"]), peak=_bytes(fields["VmHWM"]), total=_total())


def _bytes(field: str) -> int:
    return int(field.split(maxsplit=1)[0]) * 1024  # "   1234 kB"


def _total() -> int:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.exists() else "max"
    return min(machine, int(limit)) if limit.isdigit() else machine
