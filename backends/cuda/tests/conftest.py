"""Without a GPU the Triton kernels run in Triton's interpreter, on CPU tensors."""

import os
import re
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
from kit import language
from kit.server import Server

LARGE = re.compile(
    r"\[cuda-interpreted-triton-.*"
    r"(q96-k96-(none|key_padding)|q128-k128|q288-k288|h6144|h12288|rotary_size (2|16|24|64|128|256)-s33)-"
)
"""Shapes of the conformance kit that take the interpreter seconds; of the rotary sizes one has 33 tokens."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leave large shapes to `make test-all` where kernels are interpreted; a commit has tiles cut off and whole ones.

    Softmax has 33 x 33 and 64 x 256 with every mask. Rows of many tiles are those of the tests with small tiles. Of
    rotary every size has one and seven tokens, and one has 33.
    """
    if torch.cuda.is_available():
        return
    for item in items:
        if LARGE.search(item.name):
            item.add_marker(pytest.mark.full)


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
    server = Server("fake_gpu.rank", tmp_path_factory.mktemp("triton"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def compiler(tmp_path_factory):
    """Call functions of `kit` in a process in which Triton compiles, one for all tests."""
    server = Server("kit.compiler", tmp_path_factory.mktemp("triton"))

    def call(function, *arguments):
        asked = {"module": function.__module__, "function": function.__name__, "arguments": arguments}
        answer = server.run(asked)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    yield call
    server.close()
