"""Catalogue of the requests that the kit tests kernels with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.conformance.cases import cases_of
from pretrain.conformance.kernels.activation import TestActivation
from pretrain.conformance.kernels.attention import TestAttention
from pretrain.conformance.kernels.bias_dropout_add import TestBiasDropoutAdd
from pretrain.conformance.kernels.cross_entropy import TestCrossEntropy
from pretrain.conformance.kernels.dropout_generator import TestRandom
from pretrain.conformance.kernels.linear import TestLinear
from pretrain.conformance.kernels.norm import TestNorm
from pretrain.conformance.kernels.optimizer import TestOptimizer
from pretrain.conformance.kernels.rotary import TestRotary
from pretrain.conformance.kernels.softmax import TestSoftmax
from pretrain.conformance.ranks.collectives import TestCollectives

if TYPE_CHECKING:
    from pretrain.plugins.requests import Request

CLASSES = (
    TestActivation,
    TestAttention,
    TestBiasDropoutAdd,
    TestCollectives,
    TestCrossEntropy,
    TestLinear,
    TestNorm,
    TestOptimizer,
    TestRandom,
    TestRotary,
    TestSoftmax,
)


def _catalogue() -> dict[str, list[Request]]:
    listed = sorted((case for tests in CLASSES for case in cases_of(tests)), key=lambda case: case.is_costly)
    requests = [request for case in listed for request in case.candidates]
    operations = dict.fromkeys(request.operation for request in requests)
    return {name: [r for r in dict.fromkeys(requests) if r.operation == name] for name in operations}


CATALOGUE = _catalogue()
"""Operation -> requests, the costly ones last: some tests take the first that a kernel takes."""
