"""Storages that torch's operations make: counted while they live, rounded up, inputs left out."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.conformance.footprint import Allocations, rounded

KIB = 1024


@pytest.fixture(params=["real", "fake"])
def given(request):
    """A tensor of 4 KiB, which was there before."""
    if request.param == "real":
        yield torch.ones(KIB)
        return
    with FakeTensorMode():
        yield torch.ones(KIB)


def test_the_peak_is_of_what_lives_at_a_time(given):
    with Allocations() as allocations:
        first = given + 1
        del first
        second = torch.cat((given, given))
        third = second.view(2, KIB)  # the same storage
        third.mul_(2)
    assert allocations.peak == 8 * KIB


def test_what_lives_together_adds_up(given):
    with Allocations() as allocations:
        kept = [given + 1, given * 2]
        kept.append(torch.empty(1))
    assert allocations.peak == 2 * 4 * KIB + 512


@pytest.mark.parametrize(("size", "taken"), [(0, 0), (1, 512), (512, 512), (513, 1024)])
def test_a_tensor_takes_blocks(size, taken):
    assert rounded(size) == taken
