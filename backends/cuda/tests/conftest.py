"""Without a GPU the Triton kernels run in Triton's interpreter, on CPU tensors."""

import os
import sys

import pytest
import torch

if not torch.cuda.is_available():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        message = "Triton was imported before its interpreter was chosen, by the conftest.py of a folder named earlier."
        raise pytest.UsageError(f"{message}\nName backends/cuda/tests first, or alone.")
    os.environ["TRITON_INTERPRET"] = "1"  # before a kernel's module is imported

# Triton is imported here, whole: an import that fails in the midst of a test (a process may hold no more files) would
# leave a part of it behind, with which every later test fails.
from fake_gpu.server import Server
from kit import language


@pytest.fixture(scope="session")
def device():
    """Device on which kernels are tested."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def no_device(monkeypatch):
    """A machine without a GPU, also on one that has it."""
    monkeypatch.setattr("pretrain_cuda.devices._here", lambda: None)


@pytest.fixture(autouse=True)
def whole_language():
    """Restore Triton's language before every test, after any other test in this process."""
    language.restore()
    assert language.copies() == [], "a test before this one has imported triton.language a second time"


@pytest.fixture(scope="session")
def fake_gpus(tmp_path_factory):
    """A process whose ranks run on fake GPUs."""
    server = Server(tmp_path_factory.mktemp("triton"))
    yield server
    server.close()
