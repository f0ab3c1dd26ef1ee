"""Nsight Systems is told when to record, and what it shows; torch is stood in for, and no GPU has seen these calls."""

from contextlib import contextmanager
from pathlib import Path

import torch

from pretrain_cuda.backend import CudaBackend


def test_it_records_between_start_and_stop_with_nested_ranges(monkeypatch):
    calls = []

    @contextmanager
    def nvtx(text, *arguments):
        calls.append(text.format(*arguments))  # as torch.cuda.nvtx.range does
        yield
        calls.append("pop")

    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: calls.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: calls.append("stop"))
    monkeypatch.setattr(torch.cuda.nvtx, "range", nvtx)
    profiler = CudaBackend().profiler(Path("profile"))
    told = profiler.start()
    with profiler.range("layer 3/mlp: {x}"), profiler.range("step 10"):
        pass
    profiler.stop()
    assert calls == ["start", "layer 3/mlp: (x)", "step 10", "pop", "pop", "stop"]
    assert "nsys profile --capture-range=cudaProfilerApi" in told


def test_allocations_are_recorded_by_torch(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda enabled="all": calls.append(enabled))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", calls.append)
    recorder = CudaBackend().memory_recorder()
    recorder.start()
    recorder.stop(tmp_path / "snapshot.pickle")
    assert calls == ["all", str(tmp_path / "snapshot.pickle"), None]
