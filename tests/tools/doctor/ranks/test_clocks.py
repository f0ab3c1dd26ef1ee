"""Clocks of nodes against rank 0's."""

import threading
import time

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as some

from pretrain.tools.doctor.finding import Verdict
from pretrain.tools.doctor.ranks.steps import answer_time, ask_time, judge_clocks, offset_of

seconds = some.floats(0, 10)


@given(ahead=some.floats(-100, 100), there=seconds, thinking=seconds, back=seconds)
def test_the_offset_is_known_to_half_the_time_on_the_way(ahead, there, thinking, back):
    received = 50 + there + ahead
    offset, error = offset_of(50, received, received + thinking, 50 + there + thinking + back)
    assert error == pytest.approx((there + back) / 2, abs=1e-9)
    assert abs(offset - ahead) <= error + 1e-9


def test_a_clock_that_is_wrong_is_found_over_a_store():
    store = dist.HashStore()
    answering = threading.Thread(target=answer_time, args=(store, [1], lambda _: None))
    answering.start()
    offset = ask_time(store, 1, lambda: time.time() - 5)
    answering.join()
    assert offset[0] == pytest.approx(5, abs=0.5)
    (found,) = judge_clocks({1: {"host": "b", "offset": offset}, 2: {"host": "c", "offset": [0.1, 0.001]}})
    assert (found.verdict, found.ranks) == (Verdict.LOOK, (1,))
    assert found.text.startswith("rank 1 (host b) is ")
    assert "behind rank 0" in found.text


def test_clocks_within_a_second_are_ok():
    (found,) = judge_clocks({8: {"host": "b", "offset": [-0.02, 0.001]}})
    assert found.verdict is Verdict.OK
    assert found.text == "rank 8 (host b) is 0.020 s ahead of rank 0, +- 0.0010 s"
