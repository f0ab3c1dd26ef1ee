"""Without a GPU the Triton kernels run in Triton's interpreter, on CPU tensors."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before a kernel's module is imported


@pytest.fixture(scope="session")
def device():
    """Where kernels are tested."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
