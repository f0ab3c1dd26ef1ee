"""Device backend of the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.cpu import host
from pretrain.cpu.allocator import keep_freed_memory
from pretrain.machine import available_cores
from pretrain.plugins.backend import Available, Backend, PointToPoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.plugins.backend import Memory

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class CpuBackend(Backend):
    """This machine's CPU. Processes are not bound to cores; no peak is declared, so MFU is not reported."""

    name = "cpu"
    device_type = "cpu"
    process_group = "gloo"

    def availability(self) -> Available:
        """Return the CPU's name and the number of available cores."""
        return Available(f"{host.cpu_model()}, {available_cores()} cores")

    def device(self, local_rank: int) -> torch.device:  # noqa: ARG002  all ranks share the CPU
        """Return the CPU; from then on the process keeps freed memory."""
        keep_freed_memory()
        return torch.device("cpu")

    def supports(self, dtype: torch.dtype) -> bool:
        """Return True for fp32, bf16, fp16 and fp64; fp16 matmuls are computed in fp32 on CPUs without them."""
        return dtype in _DTYPES

    def memory(self, *, reset_peak: bool = False) -> Memory:
        """Return the resident set of this process; then reset the peak if `reset_peak`."""
        return host.memory(reset_peak=reset_peak)

    def point_to_point(self) -> PointToPoint:
        """Return Gloo's capabilities: it confuses several messages of one batch to one peer."""
        return PointToPoint(batched=False, overlapped=True, stream_ordered=False)

    def describe(self) -> Mapping[str, str]:
        """Return the CPU's name, the instruction set that torch uses, cores and threads."""
        return {
            "device": host.cpu_model(),
            "instruction_set": torch.backends.cpu.get_cpu_capability(),
            "cores": str(available_cores()),
            "threads": str(torch.get_num_threads()),
        }
