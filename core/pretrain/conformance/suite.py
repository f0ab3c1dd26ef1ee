"""Tests of the kit: import everything from here into the test file of a backend, and name it: BACKEND = "cuda"."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pretrain.conformance.call_order import TestCallOrder
from pretrain.conformance.cases import TIERS, label
from pretrain.conformance.catalogue import CATALOGUE, TestCoverage
from pretrain.conformance.device import TestDeviceModule, TestMemory
from pretrain.conformance.fake_tensors import TestFake
from pretrain.conformance.kernels.attention import TestAttention
from pretrain.conformance.kernels.cross_entropy import TestCrossEntropy
from pretrain.conformance.kernels.dropout import TestRandom
from pretrain.conformance.kernels.elementwise import TestActivation, TestBiasDropoutAdd, TestRotary
from pretrain.conformance.kernels.experts import TestGroupedLinear, TestMoePermute, TestRouter
from pretrain.conformance.kernels.linear import TestLinear
from pretrain.conformance.kernels.norm import TestNorm
from pretrain.conformance.kernels.optimizer import TestOptimizer
from pretrain.conformance.kernels.quantization import TestQuantization
from pretrain.conformance.kernels.softmax import TestSoftmax
from pretrain.conformance.subject import accepted, answers, load_subject
from pretrain.conformance.training import TestTraining
from pretrain.conformance.two_ranks import TestCollectives
from pretrain.plugins.backend import Unavailable
from pretrain.plugins.host.members import availability

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable
    from types import ModuleType

    from pretrain.conformance.cases import Case
    from pretrain.conformance.subject import Kernel, Subject


__all__ = [
    "TestActivation",
    "TestAttention",
    "TestBiasDropoutAdd",
    "TestCallOrder",
    "TestCollectives",
    "TestCoverage",
    "TestCrossEntropy",
    "TestDeviceModule",
    "TestFake",
    "TestGroupedLinear",
    "TestLinear",
    "TestMemory",
    "TestMoePermute",
    "TestNorm",
    "TestOptimizer",
    "TestQuantization",
    "TestRandom",
    "TestRotary",
    "TestRouter",
    "TestSoftmax",
    "TestTraining",
    "pytest_generate_tests",
    "subject",
    "test_takes_its_device",
]

_CHOSEN = pytest.StashKey[str]()


class Chosen:
    """A pytest plugin that names the backend where there is no test file with a BACKEND: `pretrain conformance`."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def pytest_configure(self, config: pytest.Config) -> None:
        """Called by pytest when it starts."""
        config.stash[_CHOSEN] = self._backend

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Called by pytest at the end: show which requests each kernel took, and why it declined the others."""
        subject = load_subject(self._backend)
        terminalreporter.section("requests of the kit")
        for requests in CATALOGUE.values():
            for each in answers(subject.plugins, requests, subject.proposals):
                terminalreporter.write_line(each.summary())


def test_takes_its_device(subject: Subject) -> None:
    """The first device. Without one pytest skips the whole module here: it collects functions before classes' tests."""
    assert subject.device.type == subject.plugins.backend.device_type


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test of the kit for every kernel of its operation, and for every case that the kernel takes.

    What cannot run at all is skipped as it is collected, once: the module without a device, a class that does not fit.
    """
    operations = getattr(metafunc.cls, "operations", ())
    skip_reason = getattr(metafunc.cls, "skip_reason", None)
    if not operations and skip_reason is None and metafunc.function is not test_takes_its_device:
        return  # no test of the kit
    subject = _subject(metafunc.config, metafunc.module)
    _require_device(subject)
    if skip_reason is not None and (reason := skip_reason(subject)):
        pytest.skip(f"{metafunc.cls.__name__}: {reason}")
    if "kernel" not in metafunc.fixturenames:
        return
    assert subject.device  # a plugin may know more once the device is initialized
    kernels = [kernel for operation in operations for kernel in subject.kernels(CATALOGUE[operation])]
    if "asked" not in metafunc.fixturenames:
        metafunc.parametrize("kernel", kernels, ids=[f"{kernel.operation}-{kernel}" for kernel in kernels])
        return
    takes_costly = getattr(metafunc.module, "COSTLY", True)
    listed = [case for case in metafunc.function.cases if takes_costly or not case.is_costly]
    pairs = [(kernel, request) for kernel in kernels for request in accepted(subject, kernel, _own(listed, kernel))]
    if pairs:
        metafunc.parametrize(("kernel", "asked"), pairs, ids=[f"{kernel}-{label(asked)}" for kernel, asked in pairs])
    else:
        _skip(metafunc, "no kernel takes any of the cases")


def _own(listed: Iterable[Case], kernel: Kernel) -> list[Case]:
    return [case for case in listed if case.candidates[0].operation == kernel.operation]


def _skip(metafunc: pytest.Metafunc, reason: str) -> None:
    names = [name for name in ("kernel", "asked") if name in metafunc.fixturenames]
    nothing = pytest.param(*(None for _ in names), marks=pytest.mark.skip(reason=reason), id="nothing to judge")
    metafunc.parametrize(names, [nothing])


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Subject:
    """Return the backend under test; skip where its device is absent."""
    subject = _subject(request.config, request.module)
    _require_device(subject)
    return subject


def _require_device(subject: Subject) -> None:
    answer = availability(subject.plugins)
    if isinstance(answer, Unavailable):
        pytest.skip(f"{subject.plugins.label}: {answer.reason}")


def _subject(config: pytest.Config, module: ModuleType) -> Subject:
    name = config.stash.get(_CHOSEN, getattr(module, "BACKEND", None))
    if name is None:
        msg = f'{module.__name__} imports the conformance kit but names no backend: BACKEND = "cuda"'
        raise pytest.UsageError(msg)
    return load_subject(name)


FIRST, *_ = TIERS


class TierRun:
    """A pytest plugin: the order of the tests, the end after a tier that failed, and the time of each tier."""

    def __init__(self, chosen: Collection[str]) -> None:
        self._tiers = [tier for tier in TIERS if tier in chosen]
        self._tier = FIRST
        self._counts: dict[str, Counter[str]] = {}
        self._seconds = dict.fromkeys(self._tiers, 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Called by pytest with all tests: leave out other tiers, and sort."""
        of_tier = {tier: [item for item in items if _tier(item) == tier] for tier in TIERS}
        config.hook.pytest_deselected(items=[item for item in items if _tier(item) not in self._tiers])
        items[:] = [item for tier in self._tiers for item in of_tier[tier]]
        self._counts = {tier: Counter() for tier in self._tiers if of_tier[tier]}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Called by pytest for each test: count its time; after a tier's last one stop where something failed."""
        self._tier, start = _tier(item), time.monotonic()
        result = yield
        self._seconds[self._tier] += time.monotonic() - start
        if nextitem is not None and _tier(nextitem) != self._tier and item.session.testsfailed:
            item.session.shouldfail = f"tier {self._tier} failed; the tiers after it were not run"
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest with the outcome of each test's setup, call and teardown."""
        if report.when == "call" or report.outcome != "passed":
            self._counts[self._tier][report.outcome] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Called by pytest at the end."""
        terminalreporter.section("tiers")
        for tier, counts in self._counts.items():
            told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
            terminalreporter.write_line(
                f"{tier}: {told} in {self._seconds[tier]:.0f} s" if told else f"{tier}: not run"
            )


def _tier(item: pytest.Item) -> str:
    """Return the tier of a test; `test_takes_its_device` is in the first."""
    cls = getattr(item, "cls", None)
    return FIRST if cls is None else getattr(cls, "tier", "kernels")
