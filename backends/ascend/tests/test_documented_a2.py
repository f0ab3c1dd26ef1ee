"""The kernels of an A2 chip on the CPU, with operators written from their documentation. No NPU was seen."""

from pretrain.testing.suite import *  # noqa: F403

BACKEND = "ascend_kit.chips:a2"
