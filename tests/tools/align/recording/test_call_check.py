"""The check of a single call, where numbers leave the range of the dtype."""

import pytest
import torch

from pretrain.plugins.requests import NormRequest
from pretrain.tools.align.recording.call_check import CallCheck

REQUEST = NormRequest(
    device_type="cpu", dtype=torch.float16, kind="LayerNorm", hidden_size=8, epsilon=1e-5, weight_dtype=torch.float16
)


def errors(received, made):
    """Return the errors of a norm that is right but for the gradient of x."""
    x = torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(1)).half().requires_grad_()
    weight, bias = torch.ones(8).half(), torch.zeros(8).half()
    check = CallCheck(REQUEST, {"x": x, "weight": weight, "bias": bias})
    check.output(torch.nn.functional.layer_norm(x.float(), (8,)).half())
    check.output_gradient(torch.full((4, 2, 8), received).half())
    return check.errors({"x": torch.full((4, 2, 8), made).half()})


def test_a_gradient_that_overflows_whatever_the_kernel_is_no_mistake():
    assert set(errors(received=torch.inf, made=torch.nan)) == {"output"}


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_one_that_only_this_kernel_makes_is(number):
    assert errors(received=1.0, made=number)["gradient of x"][0] == torch.inf
