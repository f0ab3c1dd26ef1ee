"""The Triton kernels compile for GPUs that are not here. What they compute is tested in the interpreter."""

from __future__ import annotations

import pytest

from kit.offline import compile_calls
from kit.offline_calls import ALWAYS, FULL

pytestmark = pytest.mark.xdist_group("compilation")
LEAST_SHARED_MEMORY = 99 * 1024
"""Bytes that a program can have on every architecture from 8.0 on; most have 163 KiB and more."""


@pytest.mark.full
@pytest.mark.parametrize("capability", [80, pytest.param(90, marks=pytest.mark.full)])
@pytest.mark.parametrize("calls", [*ALWAYS, *(pytest.param(calls, marks=pytest.mark.full) for calls in FULL)])
def test_kernels_compile(compiler, calls, capability):
    shared = compiler(compile_calls, capability, calls)
    assert shared, "nothing was compiled"
    assert max(shared.values()) <= LEAST_SHARED_MEMORY, shared
