"""The simulator's own tests: `make test-ascend` runs them in .venv-ascend."""

import sys

import pytest

if "ascend_simulator.start" not in sys.modules:
    pytest.exit("the simulator's tests run in .venv-ascend: make test-ascend", returncode=2)

import torch


@pytest.fixture
def npu():
    """Return the simulated device, with its generator seeded."""
    torch.npu.manual_seed(1)
    return torch.device("npu", 0)
