"""The cpu backend against the conformance kit."""

from pretrain.testing.suite import *  # noqa: F403

BACKEND = "cpu"
