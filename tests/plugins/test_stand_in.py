"""Stand-ins of kernels: differentiable by their positional arguments, named or not; gradients when they are needed."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.plugins.stand_in import stand_in


@pytest.fixture(autouse=True)
def fakes():
    with FakeTensorMode():
        yield


def twice(x, weight, bias=None, *, training=True):
    return torch.empty_like(x), [x, weight] if training else []


def leaves():
    return torch.empty(3, 4, dtype=torch.bfloat16).requires_grad_(), torch.empty(4).requires_grad_()


def gradients(output, inputs):
    return torch.autograd.grad(output, inputs, torch.empty_like(output), allow_unused=True)


@pytest.mark.parametrize("call", [lambda f, x, w: f(x, w), lambda f, x, w: f(weight=w, x=x)], ids=["by place", "named"])
def test_gradients_are_as_the_inputs(call):
    x, weight = leaves()
    first, second = gradients(call(stand_in(twice), x, weight), (x, weight))
    assert (first.shape, first.dtype) == (x.shape, torch.bfloat16)
    assert (second.shape, second.dtype) == (weight.shape, torch.float32)


def test_what_is_kept_may_depend_on_an_option():
    found = []
    x, weight = leaves()
    for training in (True, False):
        with torch.autograd.graph.saved_tensors_hooks(lambda kept: found.append(kept) or kept, lambda kept: kept):
            stand_in(twice)(x, weight, training=training)
    assert [tuple(kept.shape) for kept in found] == [(3, 4), (4,)]


def test_a_gradient_is_allocated_when_it_is_looked_at():
    def backward(kept, grad, empty):
        assert [empty.needed(place) for place in range(3)] == [True, False, False]
        assert not empty._made
        assert empty[0] is empty[0]
        assert len(empty[:]) == 3
        assert empty[-1] is None
        return empty

    x, weight = leaves()
    output = stand_in(twice, backward)(x, weight.detach())
    assert gradients(output, (x,))[0].shape == x.shape


def test_a_kept_tensor_may_become_the_gradient():
    def overwriting(kept, grad, empty):
        return kept[0], None, None

    x, weight = leaves()
    (found, none) = gradients(stand_in(twice, overwriting)(x, weight), (x, weight))
    assert found.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert none is None
