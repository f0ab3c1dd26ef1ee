"""bootstrap where the package index has no CPU build of torch, as PyPI, or not the versions that CI has seen.

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
UNSET = ("TORCH", "VENV", "PYTHON", "PIP_CONSTRAINT")
NO_CPU_BUILD = "ERROR: No matching distribution found for torch==2.13.0+cpu"
PYTHON = """#!/bin/sh
case "$*" in
    *"import torch") exit 1 ;;
    *"pip --disable"*"torch==2.13.0+cpu") echo "{answer}" >&2; exit 1 ;;
    *"pip --disable"*)
        echo "$* with ${{PIP_CONSTRAINT-nothing}}" >>"$(dirname "$0")/asked"
        [ "${{PIP_CONSTRAINT-nothing}}" = nothing ] || {constrained} ;;
    *'version("torch")'*) echo {torch} ;;
esac
"""

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("nvidia-smi") is not None, reason="another build of torch is wanted"
)


def bootstrap(folder, answer, constrained="true", torch="2.13.0"):
    for file in (ROOT / "bootstrap", ROOT / "pyproject.toml", ROOT / "constraints.txt"):
        shutil.copy(file, folder)
    for name in ("ascend", "cuda"):
        (folder / "backends" / name).mkdir(parents=True)
        (folder / "backends" / name / "pyproject.toml").touch()
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(answer=answer, constrained=constrained, torch=torch))
    python.chmod(0o755)
    python.with_name("pretrain").symlink_to("/bin/true")
    return call(folder)


def call(folder):
    asked = folder / ".venv/bin/asked"
    asked.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name not in UNSET}
    done = subprocess.run([folder / "bootstrap"], check=False, env=environment, capture_output=True, text=True)
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


def test_it_takes_the_versions_that_ci_has_seen(tmp_path):
    _, (*_, packages) = bootstrap(tmp_path, NO_CPU_BUILD)
    assert packages.endswith("with constraints.txt")


def test_where_pip_does_not_find_them_it_takes_the_newest(tmp_path):
    not_found = "{ echo ERROR: ResolutionImpossible: for help visit ...; exit 1; }"
    done, (*_, packages) = bootstrap(tmp_path, NO_CPU_BUILD, constrained=not_found)
    assert done.returncode == 0
    assert "takes the newest allowed" in done.stdout
    assert packages.endswith("with nothing")


def test_another_failure_with_these_versions_is_shown_and_nothing_else_is_tried(tmp_path):
    done, (*_, packages) = bootstrap(tmp_path, NO_CPU_BUILD, constrained="{ echo No space left on device; exit 1; }")
    assert (done.returncode, "No space left on device" in done.stderr) == (2, True)
    assert packages.endswith("with constraints.txt")


def test_another_torch_than_that_of_the_versions_is_told(tmp_path):
    done, (*_, packages) = bootstrap(tmp_path, NO_CPU_BUILD, torch="2.15.0")
    assert "constraints.txt is for another torch than 2.15.0: pip takes the newest allowed." in done.stdout
    assert packages.endswith("with nothing")


def test_other_versions_renew_the_environment(tmp_path):
    bootstrap(tmp_path, NO_CPU_BUILD)
    assert call(tmp_path)[1] == []
    with (tmp_path / "constraints.txt").open("a") as file:
        file.write("numpy==2.4.7\n")
    assert call(tmp_path)[1][-1].endswith("with constraints.txt")
