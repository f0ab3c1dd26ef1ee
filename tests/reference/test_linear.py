"""Tensors that the reference linear saves for its backward pass."""

from __future__ import annotations

import pytest
import torch

from pretrain.plugins.requests import LinearRequest
from pretrain.reference.linear import Linear


@pytest.fixture
def linear():
    return Linear(LinearRequest(device_type="cpu", dtype=torch.float32))


def kept_by(call):
    """Return the tensors that autograd's graph holds."""
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = call()
    return kept, result


@pytest.mark.parametrize("bias", [None, torch.ones(3)])
def test_a_weight_that_zero_gathers_is_kept_as_the_parameter_itself(linear, bias):
    """A view would keep the gathered values of all layers after ZeRO-3 has released them."""
    weight = torch.nn.Parameter(torch.randn(3, 4, generator=torch.Generator().manual_seed(1)))
    weight.ds_tensor = torch.empty(0)
    x = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(2), requires_grad=True)
    kept, y = kept_by(lambda: linear(x, weight, bias))
    of_weight = [tensor for tensor in kept if tensor.data_ptr() == weight.data_ptr()]
    assert of_weight
    assert all(tensor is weight for tensor in of_weight)

    values, weight.data = weight.data, torch.empty(0)  # released after the forward pass
    weight.data = values.clone()  # gathered again for the backward pass
    y.sum().backward()
    torch.testing.assert_close(x.grad, values.sum(dim=0).expand_as(x))
    torch.testing.assert_close(weight.grad, x.detach().sum(dim=(0, 1)).expand_as(weight))


def test_a_weight_that_stays_goes_through_torch_itself(linear):
    weight = torch.nn.Parameter(torch.ones(3, 4))
    assert type(linear(torch.ones(5, 2, 4), weight).grad_fn).__name__ != "_LinearBackward"
