"""Layer norm of many tokens in half precision."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias

from pretrain.conformance.examples import norm
from pretrain.cpu.layer_norm import HalfLayerNorm

TOKENS, HIDDEN = 4096, 256


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_weight_and_bias_do_not_lose_digits_with_the_tokens(dtype):
    """All gradients are within the rounding of the dtype; torch's own are 10 % of the largest entry off."""
    generator = torch.Generator().manual_seed(1)
    x, grad = (torch.randn(TOKENS, 1, HIDDEN, generator=generator).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(HIDDEN, generator=generator).to(dtype) for _ in range(2))
    kernel = HalfLayerNorm(norm(dtype, "LayerNorm", hidden=HIDDEN))
    found = gradients(kernel, dtype, x, weight, bias, grad)
    expected = gradients(
        lambda *inputs: F.layer_norm(inputs[0], (HIDDEN,), *inputs[1:]), torch.float64, x, weight, bias, grad
    )
    for ours, exact in zip(found, expected, strict=True):
        assert (ours - exact).abs().max() < 0.005 * exact.abs().max()


def gradients(kernel, dtype, *tensors):
    """Return the output and the gradients of x, weight and bias, in float64."""
    *inputs, grad = (tensor.to(dtype) for tensor in tensors)
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    output = kernel(*leaves)
    output.backward(grad)
    return [output.detach().double(), *(leaf.grad.double() for leaf in leaves)]
