"""The fused softmax: its limits, and the mask contract, which the operator alone does not keep. It is a stand-in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ascend_kit import operators
from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, forward_backward, oracle, random
from pretrain.conformance.example_calls import example_mask, mask_with_empty_rows
from pretrain.plugins.offer import Decline
from pretrain.plugins.requests import Mask
from pretrain_ascend import softmax

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    monkeypatch.setattr("pretrain_ascend.kernels.operators.call", operators.call)
    operators.calls.clear()
    return operators.calls


def on(name="Ascend910A", dtype=torch.float16, mask=Mask.CAUSAL, queries=64, keys=96, **asked):
    request = examples.softmax(dtype, mask, queries=queries, keys=keys, **asked)
    return replace(request, device_type="npu", device_name=name)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (on(mask=Mask.NONE), "mask none; only with a mask"),
        (on(queries=31), "31 queries, 96 keys; only multiples of 32 from 32 to 4096"),
        (on(keys=4128), "64 queries, 4128 keys; only multiples of 32 from 32 to 4096"),
        (on(dtype=torch.bfloat16), "dtype bfloat16 on chip family 910A; only float32, float16"),
        (on("Card 1"), "the chip family of 'Card 1' is not known; only chips of known families"),
    ],
)
def test_a_decline_names_the_unsupported_value(request_, reason):
    answer = softmax.answers(request_)
    assert isinstance(answer, Decline)
    assert answer.reason == reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("mask", [Mask.CAUSAL, Mask.KEY_PADDING, Mask.ARBITRARY])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_agrees_with_float64(stand_ins, mask, dtype, scale):
    request = on(dtype=dtype, mask=mask, scale=scale)
    tensor = example_mask(mask, 2, 64, 96)
    kernel, expected = softmax.answers(request).build({}), oracle(request)
    scores = {"scores": random(2, 4, 64, 96, dtype=dtype)}
    assert_agrees(lambda scores: kernel(scores, tensor), lambda scores: expected(scores, tensor), scores, CPU)
    assert [given["fixed_triu_mask"] for _, given in stand_ins] == [False]


@pytest.mark.parametrize("mask", [Mask.KEY_PADDING, Mask.ARBITRARY])
def test_fully_masked_rows_are_zero_forward_and_backward(mask):
    kernel = softmax.answers(on(mask=mask)).build({})
    tensor, _ = mask_with_empty_rows(mask, 2, 64, 96)
    scores = {"scores": random(2, 4, 64, 96, dtype=torch.float16)}
    for result in forward_backward(lambda scores: kernel(scores, tensor), scores, lambda x: x).values():
        assert not result[tensor.expand(result.shape)].count_nonzero()


def test_scores_below_what_stands_for_minus_infinity_let_no_masked_key_through():
    kernel = softmax.answers(on()).build({})
    weights = kernel(torch.full((1, 1, 64, 96), -20000.0, dtype=torch.float16))
    later = torch.ones(64, 96, dtype=torch.bool).triu(96 - 64 + 1)
    assert not weights[..., later].count_nonzero()


def test_a_mask_of_another_kind_is_an_error():
    kernel = softmax.answers(on()).build({})
    with pytest.raises(ValueError, match="called with a mask tensor"):
        kernel(torch.zeros(1, 1, 64, 96), torch.zeros(64, 96, dtype=torch.bool))
