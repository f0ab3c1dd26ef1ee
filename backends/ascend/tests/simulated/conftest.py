"""Fixture of the tests that start processes."""

import subprocess

import pytest

from forked_python import client


@pytest.fixture(scope="module")
def forked_python():
    """Let the module's tests fork Python processes, which saves each the import of torch_npu and megatron-core."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", client.Popen)
        yield
