"""Tensors that are read when they are used give the numbers that torch gives at once, and no more of them at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import CheckpointError
from pretrain.tools.convert.lazy_tensor import (
    LazyTensor,
    averaged,
    cast,
    in_memory,
    joined,
    narrowed,
    part_of,
    summed,
    transposed,
    with_rows,
)

sizes = st.integers(1, 9)


def tensor(*shape, dtype=torch.float32):
    return torch.arange(float(torch.tensor(shape).prod())).view(shape).to(dtype)


def in_blocks(lazy, size=16):
    """Return the whole tensor, read in blocks of so many bytes."""
    return torch.cat(list(lazy.blocks(size)))


@given(first=sizes, second=sizes, columns=sizes, size=st.integers(1, 200))
def test_parts_are_joined_by_rows_whatever_the_block(first, second, columns, size):
    parts = [tensor(first, columns), -tensor(second, columns)]
    assert torch.equal(in_blocks(joined(list(map(in_memory, parts)), 0), size), torch.cat(parts))


@given(rows=sizes, first=sizes, second=sizes, size=st.integers(1, 200))
def test_parts_are_joined_by_columns_whatever_the_block(rows, first, second, size):
    parts = [tensor(rows, first), -tensor(rows, second)]
    assert torch.equal(in_blocks(joined(list(map(in_memory, parts)), 1), size), torch.cat(parts, 1))


@given(parts=st.integers(1, 4), dim=st.integers(0, 1), scale=st.integers(1, 3))
def test_parts_of_a_whole_give_it_again(parts, dim, scale):
    whole = tensor(12 * scale, 12)
    found = [part_of(in_memory(whole), dim, index, parts) for index in range(parts)]
    assert torch.equal(in_blocks(joined(found, dim)), whole)


@given(rows=sizes, wanted=sizes)
def test_rows_are_cut_off_or_filled_with_zeros(rows, wanted):
    result = in_blocks(with_rows(in_memory(tensor(rows, 3)), wanted))
    expected = torch.zeros(wanted, 3)
    expected[: min(rows, wanted)] = tensor(rows, 3)[:wanted]
    assert torch.equal(result, expected)


@given(rows=sizes, wanted=sizes, size=st.integers(1, 60))
def test_rows_are_cut_off_or_the_last_one_repeated(rows, wanted, size):
    whole = tensor(rows, 3)
    result = in_blocks(with_rows(in_memory(whole), wanted, repeats_last=True), size)
    assert torch.equal(result, whole[torch.arange(wanted).clamp(max=rows - 1)])


def test_a_transposed_part_is_the_part_of_the_transposed():
    whole = tensor(6, 4)
    assert torch.equal(in_blocks(narrowed(transposed(in_memory(whole)), 0, 1, 2)), whole.t()[1:3])


def test_blocks_are_small_where_rows_can_be_read_alone():
    read = []

    def rows(begin, end):
        read.append(end - begin)
        return torch.zeros(end - begin, 4)

    lazy = LazyTensor((100, 4), torch.float32, rows)
    assert in_blocks(cast(narrowed(lazy, 1, 1, 2), torch.bfloat16, "w"), 64).shape == (100, 2)
    assert max(read) <= 16
    assert sum(read) == 100


def test_a_sum_and_a_mean_are_rounded_once():
    parts = [torch.tensor([2048.0, 1.0]).half(), torch.tensor([1.0, 1.0]).half(), torch.tensor([1.0, 1.0]).half()]
    lazy = list(map(in_memory, parts))
    assert in_blocks(summed(lazy)).tolist() == [2050.0, 3.0]  # in fp16 2048 + 1 is 2048
    assert in_blocks(averaged([lazy[1], lazy[2]])).tolist() == [1.0, 1.0]


def test_equal_parts_are_their_mean_bit_for_bit():
    part = torch.tensor([0.1, 65504.0, 6e-8]).half()
    assert torch.equal(in_blocks(averaged([in_memory(part)] * 3)), part)


@pytest.mark.parametrize("combine", [lambda parts: joined(parts, 0), summed, averaged])
@pytest.mark.parametrize("other", [tensor(2, 5), tensor(2, 4, dtype=torch.float16)], ids=["shape", "dtype"])
def test_parts_that_do_not_belong_together_are_refused(combine, other):
    with pytest.raises(CheckpointError, match="parts of one weight do not belong together: float32"):
        combine([in_memory(tensor(2, 4)), in_memory(other)])


def test_a_part_for_a_number_of_ranks_that_does_not_divide_is_refused():
    with pytest.raises(CheckpointError, match=r"4 ranks cannot share a weight of shape \[6, 2\] along dimension 0"):
        part_of(in_memory(tensor(6, 2)), 0, 0, 4)


def test_a_number_beyond_fp16_is_refused_and_infinities_stay():
    with pytest.raises(CheckpointError, match=r"w has numbers up to 7e\+04; fp16's maximum is 65504"):
        cast(in_memory(torch.tensor([7e4, 1.0])), torch.float16, "w").whole()
    assert cast(in_memory(torch.tensor([float("inf"), 1.0])), torch.float16, "w").whole().tolist() == [float("inf"), 1]
