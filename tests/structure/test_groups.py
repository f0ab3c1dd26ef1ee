"""Tests that start several ranks run one after the other, in one worker."""

from __future__ import annotations

import os
import subprocess
import sys

TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range(6))
@pytest.mark.xdist_group("ranks")
def test_of_a_group(number):
    with open("workers", "a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


def test_one_worker_runs_a_whole_group(tmp_path):
    """pytest 9.2 and xdist 3.8 together ignore groups in silence; the ranks of two tests then compete for the cores."""
    (tmp_path / "test_groups.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses", "2", "--dist", "loadgroup", "test_groups.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert len(set((tmp_path / "workers").read_text().split())) == 1
