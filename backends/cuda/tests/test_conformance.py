"""The cuda backend against the conformance kit. Without a GPU every test is skipped, with what is missing.

What can be judged without one is judged in the tests of each operation, through Triton's interpreter.
"""

from pretrain.testing.suite import *  # noqa: F403

BACKEND = "cuda"
