"""A benchmark as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from structure.sources import ROOT


@pytest.fixture(scope="session")
def run():
    """Return what runs `python -m benchmarks.NAME ARGUMENTS...` with one thread, and returns the ended process."""

    def run(benchmark, *arguments):
        command = [sys.executable, "-m", f"benchmarks.{benchmark}", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, env=environment)

    return run
