"""The ascend backend against the conformance kit. Without an NPU the module is skipped, with what is missing.

`make test-ascend` runs them on a simulated NPU, which proves nothing about CANN's kernels. Without one,
test_documented_*.py hold the same kernels against operators written from their documentation.
"""

from pretrain.conformance.suite import *  # noqa: F403

BACKEND = "ascend"
