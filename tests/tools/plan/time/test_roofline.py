"""Roofline of operations."""

from __future__ import annotations

import pytest

from pretrain.tools.plan.device import Efficiencies
from pretrain.tools.plan.stage_plan import Operation
from pretrain.tools.plan.step_parts import Roofline

ROOFLINE = Roofline(peak_flops=100.0, memory_bandwidth=10.0, efficiencies=Efficiencies(0.5, 0.8, 1.0))


def test_a_large_matmul_takes_its_flops():
    assert ROOFLINE.seconds({Operation(1000.0, 8, "fp16"): 1}) == pytest.approx(1000 / 50)


def test_other_operations_take_their_traffic():
    assert ROOFLINE.seconds({Operation(0.0, 80): 1}) == pytest.approx(80 / 8)


def test_operations_follow_each_other():
    assert ROOFLINE.seconds({Operation(0.0, 80): 3, Operation(100.0, 8): 0.5}) == pytest.approx(30 + 1)
