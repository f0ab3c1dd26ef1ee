"""DeepSpeed on two ranks: other groups in the next training, no float64 sums, and an overflow that one rank sees."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from bridge import deepspeed_ranks, zero
from pretrain.cpu.backend import CpuBackend

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The results of both ranks."""
    return deepspeed_ranks.run(tmp_path_factory.mktemp("ranks"))


def values(curve, *names):
    return [tuple(step[name] for name in names) for step in curve]


def alone(case, data):
    """Train in a world of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return zero.train(case, CpuBackend(), data=data)
    finally:
        dist.destroy_process_group()


@pytest.mark.full
@pytest.mark.parametrize("name", deepspeed_ranks.LAYOUTS)
def test_the_next_training_of_a_process_has_its_own_groups(ranks, name):
    """Both ranks together, then each for itself, then together again, all in the same two processes."""
    assert values(ranks[0]["together"][name], "norm") == values(ranks[1]["together"][name], "norm")
    for number, rank in enumerate(ranks):
        expected = alone(deepspeed_ranks.LAYOUTS[name], data=number)
        assert rank["alone"][name] == expected
        assert values(rank["together"][name], "norm") != values(expected, "norm")
        assert rank["together again"][name] == rank["together"][name]


@pytest.mark.parametrize("name", deepspeed_ranks.OVERFLOWS)
def test_an_overflow_on_one_rank_skips_the_step_on_all(ranks, name):
    for rank in ranks:
        steps = values(rank["overflow"][name], "skipped", "changed", "scale")
        assert steps == [(False, True, 256), (True, False, 128), (False, True, 128)]


@pytest.mark.parametrize("name", ["ZeRO-2 fp16", "ZeRO-3 fp16"])
def test_without_the_flag_no_step_is_skipped(ranks, name):
    for rank in ranks:
        assert values(rank["float64"][name], "skipped", "changed") == [(False, True)] * zero.STEPS


def test_ranks_that_cannot_sum_float64_stop_a_device_that_says_they_can(ranks):
    assert [rank["refused"] for rank in ranks] == ["all_reduce: Unsupported data type at::kDouble"] * 2


@pytest.mark.parametrize("name", deepspeed_ranks.NORMS)
def test_ranks_that_cannot_sum_float64_train_with_the_same_numbers(ranks, name):
    """Norms in fp32 differ in their last digits, and they scale the clipped gradients."""
    for rank in ranks:
        for step, expected in zip(rank["no float64"][name], rank["float64"][name], strict=True):
            assert (step["loss"], step["norm"]) == pytest.approx((expected["loss"], expected["norm"]), rel=1e-6)
