"""Device backend of the CPU."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pretrain.machine import available_cores
from pretrain.plugins.backend import Available, Backend, Memory, PointToPoint

if TYPE_CHECKING:
    from collections.abc import Mapping


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


def memory_of_process(*, reset_peak: bool) -> Memory:
    """Return the resident set of this process and the memory of the machine, or of its container.

    Outside Linux the memory in use is unknown, and the peak cannot be reset.
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


_M_TRIM_THRESHOLD = -1  # malloc.h
_M_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Let glibc's malloc keep freed memory for the next tensors of the step.

    By default glibc maps every block over 32 MiB again, and trims the heap's end; the kernel then zeroes the pages of
    activations and gradients again in every step. That took 15 to 20 % of a step of four GPT-2 blocks and their
    vocabulary on 2 cores, in fp32 and bf16. The resident set stays at its peak. Other C libraries have no such switch;
    there this does nothing.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)


_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class CpuBackend(Backend):
    """This machine's CPU. Processes are not bound to cores; no peak is declared, so MFU is not reported."""

    name = "cpu"
    device_type = "cpu"
    process_group = "gloo"
    forkable = True

    def availability(self) -> Available:
        """Return the CPU's name and the number of available cores."""
        return Available(f"{cpu_model()}, {available_cores()} cores")

    def device(self, local_rank: int) -> torch.device:  # noqa: ARG002  all ranks share the CPU
        """Return the CPU; from then on the process keeps freed memory."""
        keep_freed_memory()
        return torch.device("cpu")

    def supports(self, dtype: torch.dtype) -> bool:
        """Return True for fp32, bf16, fp16 and fp64; fp16 matmuls are computed in fp32 on CPUs without them."""
        return dtype in _DTYPES

    def memory(self, *, reset_peak: bool = False) -> Memory:
        """Return the resident set of this process; then reset the peak if `reset_peak`."""
        return memory_of_process(reset_peak=reset_peak)

    def point_to_point(self) -> PointToPoint:
        """Return Gloo's capabilities: it confuses several messages of one batch to one peer."""
        return PointToPoint(batched=False, overlapped=True, stream_ordered=False)

    def describe(self) -> Mapping[str, str]:
        """Return the CPU's name, the instruction set that torch uses, cores and threads."""
        return {
            "device": cpu_model(),
            "instruction_set": torch.backends.cpu.get_cpu_capability(),
            "cores": str(available_cores()),
            "threads": str(torch.get_num_threads()),
        }
