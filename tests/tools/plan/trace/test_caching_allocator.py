"""A caching allocator's segments, by the rules of torch's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pretrain.tools.plan.trace.storages import (
    LARGE_SEGMENT,
    MIB,
    SMALL_SEGMENT,
    CachingAllocator,
    MemoryBlock,
    StepPlace,
    reserved,
)


def test_small_blocks_share_a_segment_of_two_mebibytes():
    allocator = CachingAllocator()
    for _ in range(4):
        allocator.allocate(MIB // 2)
    assert allocator.reserved == SMALL_SEGMENT
    allocator.allocate(512)
    assert allocator.reserved == 2 * SMALL_SEGMENT


def test_blocks_below_ten_mebibytes_share_a_segment_of_twenty():
    allocator = CachingAllocator()
    allocator.allocate(9 * MIB)
    allocator.allocate(9 * MIB)
    assert allocator.reserved == LARGE_SEGMENT


def test_larger_blocks_have_their_own_segments_rounded_to_two_mebibytes():
    allocator = CachingAllocator()
    allocator.allocate(11 * MIB)
    assert allocator.reserved == 12 * MIB


def test_freed_neighbours_are_joined_and_taken_again():
    allocator = CachingAllocator()
    parts = [allocator.allocate(5 * MIB) for _ in range(4)]
    for part in parts:
        allocator.free(part)
    allocator.allocate(20 * MIB)
    assert allocator.reserved == LARGE_SEGMENT


def test_a_rest_of_at_most_a_mebibyte_stays_with_a_large_block():
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(30 * MIB))
    allocator.allocate(29 * MIB)
    allocator.allocate(MIB + 512)  # of the large pool, where nothing is left
    assert allocator.reserved == 30 * MIB + LARGE_SEGMENT


def test_the_smallest_part_that_is_large_enough_is_taken():
    allocator = CachingAllocator()
    large, _, small = (allocator.allocate(size * MIB) for size in (40, 12, 20))
    allocator.free(large)
    allocator.free(small)
    allocator.allocate(18 * MIB)
    allocator.allocate(40 * MIB)
    assert allocator.reserved == 72 * MIB


@given(st.lists(st.tuples(st.integers(0, 60 * MIB), st.integers(1, 20)), min_size=1, max_size=40))
def test_it_reserves_at_least_the_most_that_is_in_use(blocks):
    """Blocks that begin one after the other and live for some times."""
    rounded = [
        MemoryBlock(-(-size // 512) * 512, False, StepPlace(), 100 * n, 100 * (n + life) + 50 - n)
        for n, (size, life) in enumerate(blocks)
    ]
    most = max(sum(b.size for b in rounded if b.born <= time < b.died) for time in (block.born for block in rounded))
    assert reserved(rounded) >= most


def test_memory_of_the_host_is_not_reserved():
    assert reserved([MemoryBlock(4 * MIB, True, StepPlace(), 0)]) == 0


def test_at_the_limit_free_segments_are_returned_first():
    allocator = CachingAllocator(limit=40 * MIB)
    allocator.free(allocator.allocate(24 * MIB))
    allocator.allocate(30 * MIB)
    assert (allocator.reserved, allocator.most_reserved) == (30 * MIB, 30 * MIB)


def test_what_is_in_use_is_not_returned():
    allocator = CachingAllocator(limit=40 * MIB)
    allocator.allocate(24 * MIB)
    allocator.allocate(30 * MIB)
    assert allocator.most_reserved == 54 * MIB
