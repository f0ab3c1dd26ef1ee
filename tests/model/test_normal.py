"""Rows of normal numbers are equal for every choice of rows."""

from __future__ import annotations

import hashlib

import pytest
import torch

from pretrain.model.weights import BLOCK_ELEMENTS, GROUP, normal_rows

ROW = 1 << 14
HEIGHT = BLOCK_ELEMENTS // ROW
PIECE = GROUP * HEIGHT
END = 2 * PIECE + 3


def rows(first, end, row=(ROW,)):
    """Return the rows in one tensor, after looking at the number of each piece's first."""
    pieces = list(normal_rows("key", row, 0.5, first, end))
    begins = [begin for begin, _ in pieces]
    assert begins == [first, *(first + sum(map(len, (each for _, each in pieces[:n]))) for n in range(1, len(pieces)))]
    return torch.cat([numbers for _, numbers in pieces]) if pieces else torch.empty(0, *row)


@pytest.fixture(scope="module")
def whole():
    return rows(0, END)


def test_a_blocks_numbers_are_those_of_a_generator_for_the_key_and_its_number(whole):
    for block in (0, 1, GROUP, 2 * GROUP):
        seed = int.from_bytes(hashlib.blake2b(f"key/{block}".encode(), digest_size=8).digest(), "little") >> 1
        expected = torch.empty(HEIGHT, ROW).normal_(0.0, 0.5, generator=torch.Generator().manual_seed(seed))
        ours = whole[block * HEIGHT : (block + 1) * HEIGHT]
        assert torch.equal(ours, expected[: len(ours)])


@pytest.mark.parametrize(("first", "end"), [(1, 2), (HEIGHT, PIECE), (PIECE - 1, PIECE + 1), (PIECE + 5, END), (3, 3)])
def test_any_range_of_rows_can_be_generated(whole, first, end):
    assert torch.equal(rows(first, end), whole[first:end])


@pytest.mark.parametrize("threads", [1, 3])
def test_they_do_not_depend_on_the_threads(whole, threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert torch.equal(rows(0, END), whole)


def test_rows_may_be_longer_than_a_block():
    assert torch.equal(rows(1, 3, (BLOCK_ELEMENTS, 2)), rows(0, 3, (BLOCK_ELEMENTS, 2))[1:])
