"""Pieces tile a tensor where each of its numbers is in one of them; nothing is looked at number by number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import DamageError
from pretrain.tools.convert.formats.sharded import require_tiled

SHAPE = (4, 3)


def is_refused(shape, pieces):
    try:
        require_tiled(Path("index"), "key", shape, pieces)
    except DamageError:
        return True
    return False


@st.composite
def divided(draw, offsets=(0, 0), sizes=SHAPE):
    """Draw pieces that a box is cut into."""
    dim = draw(st.integers(0, 1))
    if sizes[dim] < 2 or draw(st.booleans()):
        return [(offsets, sizes)]
    cut = draw(st.integers(0, sizes[dim]))
    low, high = list(sizes), list(sizes)
    low[dim], high[dim] = cut, sizes[dim] - cut
    behind = list(offsets)
    behind[dim] += cut
    return draw(divided(offsets, tuple(low))) + draw(divided(tuple(behind), tuple(high)))


@given(pieces=divided(), data=st.data())
def test_pieces_are_accepted_where_each_number_is_in_one(pieces, data):
    assert not is_refused(SHAPE, pieces)
    number = data.draw(st.integers(0, len(pieces) - 1))
    offsets, sizes = data.draw(st.tuples(*[st.tuples(st.integers(0, 4), st.integers(0, 4))] * 2))
    pieces[number] = (offsets, sizes)
    counts = np.zeros((8, 8), dtype=int)
    for (row, column), (rows, columns) in pieces:
        counts[row : row + rows, column : column + columns] += 1
    expected = np.zeros((8, 8), dtype=int)
    expected[: SHAPE[0], : SHAPE[1]] = 1
    assert is_refused(SHAPE, pieces) == bool((counts != expected).any())


@pytest.mark.parametrize("shape", [(2_000_000_000, 3), (0, 3), ()])
def test_any_shape_in_one_piece_is_accepted(shape):
    assert not is_refused(shape, [((0,) * len(shape), shape)])


def test_more_dimensions_than_weights_have_are_refused():
    assert is_refused((1,) * 60, [((0,) * 60, (1,) * 60)])
