"""Requests that npu_cross_entropy_loss does not take are declined before it is built."""

from __future__ import annotations

import dataclasses

import pytest

from pretrain.conformance import examples
from pretrain.plugins.offer import Decline, Offer
from pretrain_ascend import cross_entropy

A2 = "Ascend910B3"


def answer(**settings):
    request = examples.cross_entropy(**settings)
    return cross_entropy.answers(dataclasses.replace(request, device_type="npu", device_name=A2))


@pytest.mark.parametrize(("length", "micro_batch"), [(2_000, 100), (200_000, 1)])
def test_200_000_rows_are_taken(length, micro_batch):
    assert isinstance(answer(length=length, micro_batch=micro_batch), Offer)


@pytest.mark.parametrize(
    ("length", "micro_batch", "reason"),
    [
        (2_048, 98, "micro_batch_size 98 x seq_length 2048 = 200704 rows; at most 200000"),
        (200_001, 1, "micro_batch_size 1 x seq_length 200001 = 200001 rows; at most 200000"),
    ],
)
def test_more_rows_are_declined_with_both_sizes(length, micro_batch, reason):
    declined = answer(length=length, micro_batch=micro_batch)
    assert isinstance(declined, Decline)
    assert declined.reason == reason
