"""Wrong kernels: with each of these faults in the simulated NPU, the backend's conformance tests fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
CONFORMANCE = ROOT / "backends" / "ascend" / "tests" / "test_conformance.py"

CAUGHT = "test_applies_the_requested_scale or test_adds_epsilon or test_agrees_with_float64 and "
CAUGHT += "(rotary_mul or swiglu or npu_gelu)"
"""Tests that show a mistake at once; fusion_attention and scaled_masked_softmax have the first of them."""

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("wrong_kernels")]  # one worker: one run


@pytest.fixture(scope="module")
def failed():
    """Return what failed with all mistakes at once."""
    command = [sys.executable, "-m", "pytest", CONFORMANCE, "-p", "simulator_kit.mistakes", "-p", "no:cacheprovider"]
    command += ["-q", "--tb=no", "-n0", "-m", "not full", "-k", CAUGHT]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 1, done.stdout + done.stderr
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith("FAILED"))


@pytest.mark.parametrize(
    "kernel", ["fusion_attention", "scaled_masked_softmax", "rms_norm", "rotary_mul", "swiglu", "npu_gelu"]
)
def test_the_mistake_is_caught(failed, kernel):
    assert kernel in failed
