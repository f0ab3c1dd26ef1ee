"""All requests with which kernels are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.testing.activation import TestActivation
from pretrain.testing.attention import TestAttention
from pretrain.testing.bias_dropout_add import TestBiasDropoutAdd
from pretrain.testing.cases import cases_of
from pretrain.testing.collectives import TestCollectives
from pretrain.testing.cross_entropy import TestCrossEntropy
from pretrain.testing.linear import TestLinear
from pretrain.testing.norm import TestNorm
from pretrain.testing.optimizer import TestOptimizer
from pretrain.testing.random import TestRandom
from pretrain.testing.rotary import TestRotary
from pretrain.testing.softmax import TestSoftmax

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
    requests = [request for tests in CLASSES for case in cases_of(tests) for request in case.candidates]
    operations = dict.fromkeys(request.operation for request in requests)
    return {name: [r for r in dict.fromkeys(requests) if r.operation == name] for name in operations}


CATALOGUE = _catalogue()
"""Operation -> requests."""
