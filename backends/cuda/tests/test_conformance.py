"""The cuda backend against the conformance kit. Without a GPU the module is skipped, with what is missing.

Tests of each operation cover what needs no GPU, through Triton's interpreter.
"""

import pytest

from pretrain.plugins.backend import Unavailable
from pretrain.testing.suite import *  # noqa: F403
from pretrain_cuda.backend import CudaBackend

BACKEND = "cuda"

if isinstance(answer := CudaBackend().availability(), Unavailable):
    pytest.skip(f"no GPU: {answer.reason}", allow_module_level=True)
