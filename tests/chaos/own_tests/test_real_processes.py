"""All faults, of real processes: one that is forked has no mark by which a data worker of its is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.fault_list import faults_of

CHAOS = [sys.executable, "-m", "chaos"]
TESTS = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.ranks
def test_every_fault_is_ok_and_nothing_is_left(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    command = [*CHAOS, "--folder", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2400, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1]) == (0, f"{1 + len(faults_of(2))} ok, 0 look, 0 wrong"), (
        done.stdout + done.stderr
    )
    assert [line.split()[0] for line in lines[:-1]] == ["ok"] * (1 + len(faults_of(2)))
    assert list(tmp_path.iterdir()) == []
