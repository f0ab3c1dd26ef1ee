"""Fixture of the tests that start processes."""

import subprocess
import sys

import pytest

from forked_python import client


@pytest.fixture(scope="module")
def forked_python():
    """Let the module's tests fork Python processes on the simulated NPU, which saves each the import of torch_npu.

    On a real one nothing is forked: a driver may have started threads.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "ascend_simulator.start" in sys.modules:
            patch.setattr(subprocess, "Popen", client.Popen)
        yield
