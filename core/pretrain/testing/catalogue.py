"""Catalogue of the requests that the kit tests kernels with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.testing.cases import cases_of
from pretrain.testing.kernels.activation import TestActivation
from pretrain.testing.kernels.attention import TestAttention
from pretrain.testing.kernels.bias_dropout_add import TestBiasDropoutAdd
from pretrain.testing.kernels.cross_entropy import TestCrossEntropy
from pretrain.testing.kernels.dropout_generator import TestRandom
from pretrain.testing.kernels.linear import TestLinear
from pretrain.testing.kernels.norm import TestNorm
from pretrain.testing.kernels.optimizer import TestOptimizer
from pretrain.testing.kernels.rotary import TestRotary
from pretrain.testing.kernels.softmax import TestSoftmax
from pretrain.testing.ranks.collectives import TestCollectives

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
