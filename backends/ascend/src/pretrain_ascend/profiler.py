"""torch_npu's profiler, which drives CANN's msprof and writes what MindStudio Insight opens. Not run on an NPU."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path


class Msprof:
    """`pretrain.plugins.backend.DeviceProfiler`: a folder *_ascend_pt of each profile and rank."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._profile: Any = None

    def start(self) -> str:
        """Begin to record operators of the host and kernels of the NPU."""
        profiler = import_module("torch_npu.profiler")
        activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU]
        written = profiler.tensorboard_trace_handler(str(self._folder))
        self._profile = profiler.profile(activities=activities, on_trace_ready=written)
        self._profile.start()
        return f"profiled by torch_npu: {self._folder}/*_ascend_pt, for MindStudio Insight"

    def stop(self) -> None:
        """End the recording; torch_npu analyses it, which can take minutes."""
        self._profile.stop()

    def range(self, name: str) -> AbstractContextManager[object]:
        """Return a range of torch's, which torch_npu records among the host's operators."""
        return torch.profiler.record_function(name)
