"""The cpu backend against the conformance kit."""

from pretrain.testing.suite import *  # noqa: F403

BACKEND = "cpu"

del TestTraining  # noqa: F821  compares with the cpu; tests/engine has every layout of its, tests/abacus runs it
