"""The kernels of an A2 chip on the CPU, with operators written from their documentation. No NPU was seen."""

from pretrain.conformance.suite import *  # noqa: F403

BACKEND = "ascend_kit.chips:a2"

del TestCollectives, TestDeviceModule, TestMemory, TestTraining  # noqa: F821  of the CPU; tests/cpu has them
del TestFake  # noqa: F821  it holds stand-ins against kernels, and the operators here are stand-ins too
