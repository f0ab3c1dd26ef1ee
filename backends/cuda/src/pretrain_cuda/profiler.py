"""NVIDIA's profilers: ranges that Nsight Systems shows, and the part of a run that it records. Not run on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

COMMAND = "nsys profile --capture-range=cudaProfilerApi --capture-range-end=repeat --trace=cuda,nvtx"
"""What a training is started with; docs/profiling.md has the whole line."""


class NsightSystems:
    """`pretrain.plugins.backend.DeviceProfiler`: nsys, which has started the training, writes the report."""

    def start(self) -> str:
        """Tell nsys to begin; without nsys nothing is recorded."""
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        return f"profiled for NVIDIA's tools; they record if they have started the run: {COMMAND} pretrain ..."

    def stop(self) -> None:
        """Tell nsys to end."""
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]

    def range(self, name: str) -> AbstractContextManager[object]:
        """Return an NVTX range."""
        return torch.cuda.nvtx.range(name.replace("{", "(").replace("}", ")"))  # torch formats the text
