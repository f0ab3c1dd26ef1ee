"""The Triton kernels compile for GPUs that are not here. What they compute is tested in the interpreter."""

from __future__ import annotations

import json
from functools import cache

import pytest

from kit.compiler import run_compiler
from kit.offline_calls import CALLS

pytestmark = pytest.mark.xdist_group("compilation")
LEAST_SHARED_MEMORY = 99 * 1024
"""Bytes that a program can have on every architecture from 8.0 on; most have 163 KiB and more."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return what compiles all kernels for a compute capability, in one process; it is asked once for each."""
    return cache(
        lambda capability: json.loads(
            run_compiler(tmp_path_factory.mktemp("triton"), "-m", "kit.offline", capability, *CALLS)
        )
    )


@pytest.mark.parametrize("capability", [80, pytest.param(90, marks=pytest.mark.full)])
@pytest.mark.parametrize("operation", CALLS)
def test_kernels_compile(compiled, operation, capability):
    shared = compiled(capability)[operation]
    assert shared, "nothing was compiled"
    assert max(shared.values()) <= LEAST_SHARED_MEMORY, shared
