"""bootstrap on a machine whose package index has no CPU build of torch, as PyPI: it takes the default wheel.

pip is a script here that writes down what it is asked; `make test-versions` has the real one.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_CPU_BUILD = "ERROR: No matching distribution found for torch==2.13.0+cpu"
PYTHON = """#!/bin/sh
case "$*" in
    *"import torch") exit 1 ;;
    *"pip --disable"*"torch==2.13.0+cpu") echo "{answer}" >&2; exit 1 ;;
    *"pip --disable"*) echo "$*" >>"$(dirname "$0")/asked" ;;
    *'version("torch")'*) echo 2.13.0 ;;
esac
"""

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("nvidia-smi") is not None, reason="another build of torch is wanted"
)


def bootstrap(folder, answer):
    for file in (ROOT / "bootstrap", ROOT / "pyproject.toml"):
        shutil.copy(file, folder)
    for name in ("ascend", "cuda"):
        (folder / "backends" / name).mkdir(parents=True)
        (folder / "backends" / name / "pyproject.toml").touch()
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(answer=answer))
    python.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name not in ("TORCH", "VENV", "PYTHON")}
    done = subprocess.run([folder / "bootstrap"], check=False, env=environment, capture_output=True, text=True)
    asked = python.with_name("asked")
    return done, asked.read_text().splitlines() if asked.exists() else []


def test_the_default_wheel_is_taken_where_there_is_no_cpu_build(tmp_path):
    done, asked = bootstrap(tmp_path, NO_CPU_BUILD)
    assert (done.returncode, done.stderr) == (0, "")
    assert "takes torch's default wheel, 5 GB; docs/installing.md says how to get the smaller one" in done.stdout
    assert [line.partition(" install ")[2].split()[0] for line in asked] == ["torch==2.13.0", "torch==2.13.0"]
    assert ".[dev]" in asked[1], "torch is named beside what could exchange it"


def test_another_failure_of_pip_is_shown_and_installs_nothing(tmp_path):
    done, asked = bootstrap(tmp_path, "ERROR: No space left on device")
    assert (done.returncode, asked) == (2, [])
    assert "No space left on device" in done.stderr
