"""The cuda backend against the conformance kit. Without a GPU the module is skipped, with what is missing.

Tests of each operation cover what needs no GPU, through Triton's interpreter.
"""

from pretrain.conformance.suite import *  # noqa: F403

BACKEND = "cuda"
