"""The cpu backend against the conformance kit."""

from pretrain.conformance.suite import *  # noqa: F403

BACKEND = "cpu"

del TestDeviceModule  # noqa: F821  torch needs no module of the CPU
del TestTraining  # noqa: F821  compares with the cpu; tests/engine has every layout of its, tests/abacus runs it
