from pretrain.testing.suite import TestNorm, pytest_generate_tests, subject  # noqa: F401

BACKEND = "kit.interpreted"
