"""The Triton kernels compile for GPUs that are not here. What they compute is tested in the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from kit.offline_calls import CALLS

pytestmark = pytest.mark.xdist_group("compilation")
LEAST_SHARED_MEMORY = 99 * 1024
"""Bytes that a program can have on every architecture from 8.0 on; most have 163 KiB and more."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return what compiles all kernels for a compute capability, in one process; it is asked once for each."""
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}

    @cache
    def compiled(capability):
        answer = subprocess.run(
            [sys.executable, "-m", "kit.offline", str(capability), *CALLS],
            env=variables | {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))},
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    return compiled


@pytest.mark.parametrize("capability", [80, pytest.param(90, marks=pytest.mark.full)])
@pytest.mark.parametrize("operation", CALLS)
def test_kernels_compile(compiled, operation, capability):
    shared = compiled(capability)[operation]
    assert shared, "nothing was compiled"
    assert max(shared.values()) <= LEAST_SHARED_MEMORY, shared
