"""Abilities of a device that the safeguards of a training use: events, copies to the host, wrapping integers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pretrain.model.layer import CoreAttention
from pretrain.plugins.backend import Unavailable
from pretrain.training.reporting.stragglers import CALLS, LocalClock
from pretrain.training.safeguards.replicas import WeightHash
from pretrain.training.safeguards.spike_watch import HostCopies
from pretrain_ascend.backend import AscendBackend

answer = AscendBackend().availability()
pytestmark = pytest.mark.skipif(isinstance(answer, Unavailable), reason=f"no NPU: {getattr(answer, 'reason', '')}")


class Attention(CoreAttention):
    """Attention without a kernel."""

    def __init__(self):
        nn.Module.__init__(self)

    def forward(self, value):
        return value @ value


def device():
    return AscendBackend().device(0)


@pytest.mark.parametrize("pin_memory", [False, True])
def test_a_loss_is_copied_to_the_host_before_its_place_is_needed_again(pin_memory):
    copies = HostCopies(device(), pin_memory=pin_memory)
    losses = [torch.tensor(number + 0.5, device=device()) for number in range(6)]
    pending = copies.start(losses[0])
    for number, loss in enumerate(losses[1:], start=1):
        pending, previous = copies.start(loss), pending
        assert previous() == number - 0.5
    assert pending() == 5.5


def test_attention_is_timed_by_events():
    clock, model = LocalClock(device()), Attention()
    assert clock._event is not None
    clock.attach([model])
    clock.begin_step()
    for _ in range(CALLS + 1):
        model(torch.ones(64, 64, device=device()))
    assert len(clock._events) == CALLS
    torch.npu.synchronize()
    assert clock.take() > 0
    assert clock.take() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hashes_are_those_of_the_cpu(dtype):
    weights = [torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype) for size in (7, 64, 1001)]
    ours = WeightHash().buckets([weight.to(device()) for weight in weights])
    assert ours.device.type == device().type
    assert ours.tolist() == WeightHash().buckets(weights).tolist()
