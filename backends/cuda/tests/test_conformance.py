"""The cuda backend against the conformance kit. Without a GPU the module is skipped, with what is missing.

What can be judged without one is judged in the tests of each operation, through Triton's interpreter.
"""

import pytest

from pretrain.plugins.backend import Unavailable
from pretrain.testing.suite import *  # noqa: F403
from pretrain_cuda.backend import CudaBackend

BACKEND = "cuda"

if isinstance(answer := CudaBackend().availability(), Unavailable):
    pytest.skip(f"no GPU: {answer.reason}", allow_module_level=True)
