"""Storages of fake tensors, followed from their allocation to their release."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.plugins.stand_in import observing, stand_in
from pretrain.tools.plan.trace.planned_device import APART, DeviceFunctions
from pretrain.tools.plan.trace.storages import StepPosition, Storages
from pretrain.tools.plan.trace.work import Follower, Work

MIB = 2**20


@pytest.fixture
def position():
    return StepPosition()


@pytest.fixture
def storages(position):
    """Storages that are followed during the test, on a device with memory of its own."""
    followed = Storages(APART)
    follower = Follower(position, followed, Work())
    with DeviceFunctions(APART, 1), FakeTensorMode(allow_non_fake_inputs=True), follower, observing(follower):
        yield followed


def living(storages: Storages) -> int:
    return sum(block.size for block in storages.blocks if block.died is None and not block.on_host)


def test_a_tensor_counts_until_its_last_view_is_gone(storages):
    whole = torch.empty(MIB, dtype=torch.uint8, device=APART)
    view = whole[:10].view(2, 5)
    del whole
    assert living(storages) == MIB
    del view
    assert living(storages) == 0


def test_sizes_are_rounded_as_the_allocator_does(storages):
    kept = torch.empty(3, dtype=torch.float32, device=APART)
    assert living(storages) == 512
    assert kept.device == APART


def test_autograd_keeps_what_the_backward_pass_needs(storages):
    x = torch.empty(1024, 1024, dtype=torch.bfloat16, device=APART, requires_grad=True)
    y = x.exp().sin()
    assert living(storages) == 3 * 2 * MIB  # x, its exponential for both passes, and the result
    y.sum().backward()
    del y
    assert living(storages) == 2 * 2 * MIB  # x and its gradient


def test_host_and_device_are_told_apart(storages):
    on_host = torch.empty(MIB, dtype=torch.uint8)
    on_device = on_host.to(APART)
    back = on_device.cpu()
    assert [block.on_host for block in storages.blocks] == [True, False, True]
    assert back.device == torch.device("cpu")


def test_tensors_of_numbers_are_on_their_device(storages):
    """torch makes them on the host; mixed with others of the device they would be an error."""
    scale = torch.tensor([2.0], device=APART)
    assert (scale * torch.empty(1, device=APART)).device == APART


def test_meta_tensors_take_no_memory(storages):
    """DeepSpeed keeps shapes in them."""
    torch.zeros_like(torch.empty(MIB, device=APART), device="meta")
    assert [block.on_host for block in storages.blocks] == [False]


def test_mixing_host_and_device_is_an_error(storages):
    with pytest.raises(RuntimeError, match="cpu:1"):
        torch.empty(3) + torch.empty(3, device=APART)


def test_a_value_that_is_read_is_zero(storages):
    assert torch.empty((), device=APART).item() == 0
    assert not torch.empty(3, device=APART).isinf().any()


def test_a_value_that_torch_knows_is_read(storages):
    assert torch.tensor([7]).item() == 7


def test_dropout_keeps_bits(storages):
    x = torch.empty(MIB, device=APART, requires_grad=True)
    before = living(storages)
    y = torch.nn.functional.dropout(x, 0.1)
    assert living(storages) - before == y.nbytes + MIB // 8


def test_without_probability_dropout_keeps_nothing(storages):
    x = torch.empty(MIB, device=APART, requires_grad=True)
    before = living(storages)
    assert torch.nn.functional.dropout(x, 0.0).shape == x.shape
    assert torch.nn.functional.dropout(x, 0.5, training=False).shape == x.shape
    assert living(storages) == before


def test_what_a_kernel_frees_again_is_its_workspace(storages, position):
    def compute(x):
        workspace = x.new_empty(4096)
        del workspace
        return torch.empty_like(x), (x,)

    x = torch.empty(MIB, device=APART, requires_grad=True)
    y = stand_in(compute)(x)
    assert [block.size for block in storages.blocks if block.is_workspace] == [4 * 4096]
    assert y.shape == x.shape


def test_blocks_know_their_place(storages, position):
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False, device=APART))
    position.follow(layer)
    position.begin_step(1)
    with position.phase("forward-backward"):
        y = layer(torch.empty(2, 4, device=APART, requires_grad=True))
        y.sum().backward()
    named = {(place.module, place.is_backward) for place in (block.place for block in storages.blocks) if place.step}
    assert ("0", False) in named
    assert ("", True) in named
    assert storages.blocks[-1].place.micro_batch == 1
