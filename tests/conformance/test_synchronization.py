"""Operators by which a kernel makes the host wait are found, on the CPU too."""

from __future__ import annotations

import pytest
import torch

from pretrain.conformance.comparison import NoSynchronization


def write_by_mask(x):
    x[x > 0] = torch.arange(3.0)


def write_one_value_by_mask(x):
    x[x > 0] = 0.0


WAITING = {
    "item": lambda x: x.sum().item(),
    "branch": lambda x: bool(x.sum() > 0),
    "read by a mask": lambda x: x[x > 0],
    "write by a mask": write_by_mask,
    "nonzero": lambda x: x.nonzero(),
}


@pytest.mark.parametrize("call", WAITING.values(), ids=WAITING)
def test_a_call_whose_result_is_in_the_values_waits(call):
    with pytest.raises(AssertionError, match="makes the host wait"), NoSynchronization():
        call(torch.tensor([1.0, -1.0, 2.0, 3.0]))


@pytest.mark.parametrize("call", [write_one_value_by_mask, lambda x: x[torch.tensor([0, 1])]], ids=["fill", "indices"])
def test_operators_that_need_no_value_do_not_wait(call):
    with NoSynchronization():
        call(torch.tensor([1.0, -1.0, 2.0, 3.0]))
