"""The plugin of docs/align.md, docs/example-wrong-kernel, is wrong in one layer, and there in its gradient alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pretrain.plugins.host import manager
from pretrain.plugins.negotiation.kernels import negotiate
from pretrain.plugins.requests import NormRequest

EXAMPLE = Path(__file__).parents[2] / "docs" / "example-wrong-kernel"


@pytest.fixture
def norm(site):
    site.project(EXAMPLE)
    request = NormRequest(
        device_type="cpu",
        dtype=torch.float64,
        kind="LayerNorm",
        hidden_size=8,
        epsilon=1e-5,
        weight_dtype=torch.float64,
    )
    return negotiate(manager.load("cpu"), [request], {"norm": "fast_norm"}, "forbid").norm


def test_the_gradient_is_2_percent_too_large_in_the_first_norm_of_layer_7_of_12(norm):
    x, weight, bias = torch.randn(3, 8).double().requires_grad_(), torch.randn(8).double(), torch.randn(8).double()
    right = torch.nn.functional.layer_norm(x, (8,), weight, bias, 1e-5)
    (gradient,) = torch.autograd.grad(right.sin().sum(), x)
    for call in range(2 * 25):
        output = norm(x, weight, bias)
        (found,) = torch.autograd.grad(output.sin().sum(), x)
        torch.testing.assert_close(output, right)
        torch.testing.assert_close(found, gradient * (1.02 if call % 25 == 2 * 6 else 1))
