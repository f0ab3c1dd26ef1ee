"""The ascend backend against the conformance kit. Where there is no NPU every test is skipped, with what is missing.

`make test-ascend` runs them on a simulated NPU, which says nothing of CANN's kernels. Without one, test_documented_*.py
hold the same kernels against operators written from their documentation.
"""

from pretrain.testing.suite import *  # noqa: F403

BACKEND = "ascend"
