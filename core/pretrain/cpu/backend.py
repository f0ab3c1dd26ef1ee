"""The CPU as a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.cores import available_cores
from pretrain.cpu import host
from pretrain.cpu.allocator import keep_freed_memory
from pretrain.plugins.backend import Available, Backend, PointToPoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.plugins.backend import Memory

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class CpuBackend(Backend):
    """Processes of this machine's CPU. They are not bound to cores; no peak is declared, so MFU is not reported."""

    name = "cpu"
    device_type = "cpu"
    process_group = "gloo"

    def availability(self) -> Available:
        """Say how many cores there are."""
        return Available(f"{host.cpu_model()}, {available_cores()} cores")

    def device(self, local_rank: int) -> torch.device:  # noqa: ARG002  all ranks share the CPU
        """Return the CPU, after memory is made to stay with the process."""
        keep_freed_memory()
        return torch.device("cpu")

    def supports(self, dtype: torch.dtype) -> bool:
        """Say yes to fp32, bf16, fp16 and fp64; products in fp16 are computed in fp32 where the CPU has none."""
        return dtype in _DTYPES

    def memory(self, *, reset_peak: bool = False) -> Memory:
        """Return the resident set of this process; after that forget the peak if `reset_peak`."""
        return host.memory(reset_peak=reset_peak)

    def point_to_point(self) -> PointToPoint:
        """Gloo does not keep several messages of one batch to one peer apart; one by one it does."""
        return PointToPoint(batched=False, overlapped=True, stream_ordered=False)

    def describe(self) -> Mapping[str, str]:
        """Return the CPU's name, its instruction set as torch uses it, cores and threads."""
        return {
            "device": host.cpu_model(),
            "instruction_set": torch.backends.cpu.get_cpu_capability(),
            "cores": str(available_cores()),
            "threads": str(torch.get_num_threads()),
        }
