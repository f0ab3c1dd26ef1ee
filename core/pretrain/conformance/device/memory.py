"""Memory statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.conformance.subject import Subject
    from pretrain.plugins.backend import Memory

MORE = 64 * 2**20


class TestMemory:
    """`Backend.memory`."""

    def test_is_consistent(self, subject: Subject) -> None:
        """Memory in use is at most the peak, and the peak is at most the total."""
        memory = subject.plugins.backend.memory()
        known = [value for value in (memory.allocated, memory.peak, memory.total) if value is not None]
        if not known:
            pytest.skip("the device reports no memory")
        assert known == sorted(known), f"allocated <= peak <= total does not hold: {memory}"
        assert min(known) >= 0

    def test_reports_allocations(self, subject: Subject) -> None:
        """Memory in use and peak include large tensors; the peak stays when they are freed."""
        backend = subject.plugins.backend
        before = during = _reported(backend.memory(reset_peak=True))
        tensors: list[Tensor] = []
        # The first ones may reuse memory that the process has kept of freed tensors.
        while during - before < MORE // 2 and len(tensors) <= before // MORE + 1:
            tensors.append(torch.ones(MORE // 4, dtype=torch.float32, device=subject.device))
            during = _reported(backend.memory())
        size = len(tensors) * MORE
        assert during - before >= MORE // 2, f"allocated grew by {during - before} with tensors of {size} bytes"
        tensors.clear()
        peak = backend.memory().peak
        assert peak is None or peak >= during, f"the peak is {peak}, but {during} bytes were in use"

    def test_resets_the_peak(self, subject: Subject) -> None:
        """`reset_peak` returns the peak until now; afterwards it is counted from what is in use."""
        backend = subject.plugins.backend
        memory = backend.memory(reset_peak=True)
        after = backend.memory()
        if memory.peak is None or after.peak is None:
            pytest.skip("the device reports no peak")
        assert after.peak <= memory.peak + MORE, f"the peak grew from {memory.peak} to {after.peak} when it was reset"


def _reported(memory: Memory) -> int:
    if memory.allocated is None:
        pytest.skip("the device does not report what is allocated")
    return memory.allocated
