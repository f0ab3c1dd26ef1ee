"""Catalogue of the requests that the kit tests kernels with."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from pretrain.conformance.cases import cases_of
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
from pretrain.conformance.subject import answers
from pretrain.conformance.two_ranks import TestCollectives
from pretrain.distributions import Role

if TYPE_CHECKING:
    from pretrain.conformance.subject import Answers, Kernel, Subject
    from pretrain.plugins.requests import Request


CLASSES = (
    TestActivation,
    TestAttention,
    TestBiasDropoutAdd,
    TestCollectives,
    TestCrossEntropy,
    TestGroupedLinear,
    TestLinear,
    TestMoePermute,
    TestNorm,
    TestOptimizer,
    TestQuantization,
    TestRandom,
    TestRotary,
    TestRouter,
    TestSoftmax,
)


def _catalogue() -> dict[str, list[Request]]:
    listed = sorted((case for tests in CLASSES for case in cases_of(tests)), key=lambda case: case.is_costly)
    requests = [request for case in listed for request in case.candidates]
    operations = dict.fromkeys(request.operation for request in requests)
    return {name: [r for r in dict.fromkeys(requests) if r.operation == name] for name in operations}


CATALOGUE = _catalogue()
"""Operation -> requests, the costly ones last: some tests take the first that a kernel takes."""


@cache
def _answers(subject: Subject, operation: str) -> dict[Kernel, Answers]:
    return {each.kernel: each for each in answers(subject.plugins, CATALOGUE[operation], subject.proposals)}


class TestCoverage:
    """Kernels that decline all of the kit's requests."""

    operations = tuple(CATALOGUE)

    def test_takes_a_request(self, subject: Subject, kernel: Kernel) -> None:
        """Every kernel takes at least one request; otherwise it was not compared."""
        found = _answers(subject, kernel.operation)[kernel]
        if found.absent:
            pytest.skip(f"not on this machine: {found.absent}")
        assert found.taken, found.fault()

    @pytest.mark.parametrize("operation", CATALOGUE)
    def test_names_a_kernel(self, subject: Subject, operation: str) -> None:
        """A hook of the backend offers or declines a kernel for at least one request."""
        own = [member for member in subject.plugins.members if member.installed.role is Role.BACKEND]
        for plugin in own:
            if not hasattr(plugin.hooks, f"pretrain_{operation}"):
                continue
            requests = CATALOGUE[operation]
            named = any(kernel.plugin == plugin.installed.name for kernel in subject.kernels(requests))
            assert named, (
                f"pretrain_{operation} of {plugin.installed.label} names no kernel for any request, so nothing was "
                "compared.\nReturn Decline(name, reason) where a kernel does not fit, or remove the hook."
            )
