"""Spread of positions, and parts that two ranks have of one sequence."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.tools.align.recording.sink import spread


@given(st.integers(1, 5000), st.integers(1, 200))
def test_positions_are_evenly_spread_with_the_first_and_the_last(length, most):
    positions = spread(length, most)

    assert len(positions) == min(length, most)
    assert len(set(positions.tolist())) == len(positions)
    assert positions[0] == 0
    assert most == 1 or positions[-1] == length - 1
    assert torch.equal(positions, positions.sort().values)
