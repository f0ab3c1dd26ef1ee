"""The tests: import everything from here into the test file of a backend, and name it: BACKEND = "cuda"."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pretrain.plugins.backend import Unavailable
from pretrain.plugins.readiness import availability
from pretrain.testing.activation import TestActivation
from pretrain.testing.attention import TestAttention
from pretrain.testing.bias_dropout_add import TestBiasDropoutAdd
from pretrain.testing.collectives import TestCollectives
from pretrain.testing.cross_entropy import TestCrossEntropy
from pretrain.testing.device_module import TestDeviceModule
from pretrain.testing.linear import TestLinear
from pretrain.testing.memory import TestMemory
from pretrain.testing.norm import TestNorm
from pretrain.testing.optimizer import TestOptimizer
from pretrain.testing.random import TestRandom
from pretrain.testing.rotary import TestRotary
from pretrain.testing.softmax import TestSoftmax
from pretrain.testing.subject import load_subject
from pretrain.testing.training import TestTraining

if TYPE_CHECKING:
    from types import ModuleType

    from pretrain.testing.subject import Subject

__all__ = [
    "TestActivation",
    "TestAttention",
    "TestBiasDropoutAdd",
    "TestCollectives",
    "TestCrossEntropy",
    "TestDeviceModule",
    "TestLinear",
    "TestMemory",
    "TestNorm",
    "TestOptimizer",
    "TestRandom",
    "TestRotary",
    "TestSoftmax",
    "TestTraining",
    "pytest_generate_tests",
    "subject",
]

_CHOSEN = pytest.StashKey[str]()


class Chosen:
    """A pytest plugin that names the backend where there is no test file with a BACKEND: `pretrain conformance`."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def pytest_configure(self, config: pytest.Config) -> None:
        """Called by pytest when it starts."""
        config.stash[_CHOSEN] = self._backend


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test of the kit for every kernel of its operation."""
    operations = getattr(metafunc.cls, "operations", ())
    if "kernel" not in metafunc.fixturenames or not operations:
        return
    subject = _subject(metafunc.config, metafunc.module)
    kernels = [kernel for operation in operations for kernel in subject.kernels(operation)]
    metafunc.parametrize("kernel", kernels, ids=str)


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Subject:
    """Return the backend under test; skip where its device is absent."""
    subject = _subject(request.config, request.module)
    answer = availability(subject.plugins)
    if isinstance(answer, Unavailable):
        pytest.skip(f"{subject.plugins.label}: {answer.reason}")
    return subject


def _subject(config: pytest.Config, module: ModuleType) -> Subject:
    name = config.stash.get(_CHOSEN, getattr(module, "BACKEND", None))
    if name is None:
        msg = f'{module.__name__} imports the conformance kit but names no backend: BACKEND = "cuda"'
        raise pytest.UsageError(msg)
    return load_subject(name)
