"""The simulator is built here and shipped nowhere, and torch_npu stays out of the other tests' environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

DISTRIBUTION = Path(__file__).parents[2]
ROOT = DISTRIBUTION.parents[1]


@pytest.mark.parametrize("builder", [WheelBuilder, SdistBuilder])
def test_the_distribution_has_the_backend_and_no_simulator(builder):
    shipped = [file.distribution_path for file in builder(str(DISTRIBUTION)).recurse_included_files()]
    assert any(path.endswith("pretrain_ascend/plugin.py") for path in shipped)
    assert [path for path in shipped if "simulator" in path] == []


def test_the_main_environment_has_neither_torch_npu_nor_the_simulator():
    code = "import importlib.util as u; print(u.find_spec('torch_npu'), u.find_spec('ascend_simulator'))"
    done = subprocess.run([ROOT / ".venv/bin/python", "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["None", "None"]


def test_without_a_compiler_two_lines_say_so():
    build = [sys.executable, "-m", "ascend_simulator.build"]
    done = subprocess.run(build, env={**os.environ, "CXX": "c++-missing"}, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "The simulated NPU is written in C++, and there is no compiler c++-missing.",
        "Install g++ 11 or later, or set CXX to the name of another.",
    ]


def test_an_environment_needs_the_main_one(tmp_path):
    script = tmp_path / "backends" / "ascend" / "environment"
    script.parent.mkdir(parents=True)
    script.write_text((DISTRIBUTION / "environment").read_text())
    done = subprocess.run(["sh", script], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[1] == "Call ./bootstrap first."
