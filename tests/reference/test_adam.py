"""Adam whose state is kept in bf16 makes a bounded part of it fp32 at a time."""

from __future__ import annotations

import pytest
import torch

from pretrain.plugins.requests import OptimizerRequest
from pretrain.reference import adam

BF16 = OptimizerRequest(
    device_type="cpu", dtype=torch.float32, exp_avg_dtype=torch.bfloat16, exp_avg_sq_dtype=torch.bfloat16
)
SHAPES = [(5, 12), (3,), (200,), (7, 30), (), (1, 90)]


def three_steps(kept, monkeypatch, at_once):
    monkeypatch.setattr(adam, "AT_ONCE", at_once)
    generator = torch.Generator().manual_seed(3)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    stepping = kept(parameters, lr=0.1)
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        stepping.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("base", [adam.ForeachAdam, adam.FusedAdam])
def test_batches_change_no_weight(base, monkeypatch):
    kept = adam.keeping(base, BF16)
    for ours, whole in zip(*(three_steps(kept, monkeypatch, size) for size in (64, 1 << 22)), strict=True):
        torch.testing.assert_close(ours, whole, rtol=1e-6, atol=1e-6)


def test_no_more_than_a_batch_is_in_fp32(monkeypatch):
    sizes = []

    class Counting(adam.ForeachAdam):
        def _update(self, group, parameters, grads, means, squares):
            assert {each.dtype for each in (*means, *squares)} == {torch.float32}
            sizes.append(sum(each.numel() for each in means))
            super()._update(group, parameters, grads, means, squares)

    three_steps(adam.keeping(Counting, BF16), monkeypatch, 64)
    assert sum(sizes) == 3 * sum(torch.Size(shape).numel() for shape in SHAPES)
    assert sorted(sizes)[-4] <= 64 < sorted(sizes)[-3] == 90  # one row alone has more


def test_a_state_in_fp32_has_the_class_itself():
    assert adam.keeping(adam.FusedAdam, OptimizerRequest(device_type="cpu", dtype=torch.float32)) is adam.FusedAdam
