"""Ranks with the same part of the model write and read equal shares of it, and every element once."""

from __future__ import annotations

import math

import pytest
import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory, is_main_replica

from pretrain.checkpoint import distributed_states, shares

SHAPES = [(), (7,), (5, 3), (1, 6), (3, 4, 2), (2, 1, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_boxes_hold_a_range_of_elements_in_its_order(shape):
    numbers = torch.arange(math.prod(shape)).view(shape)
    for start in range(numbers.numel() + 1):
        for stop in range(start, numbers.numel() + 1):
            found = [number for box in shares.boxes(shape, start, stop) for number in numbers[box].flatten().tolist()]
            assert found == list(range(start, stop))


def test_a_range_of_whole_rows_is_one_box():
    assert list(shares.boxes((8, 4), 8, 24)) == [(slice(2, 6), slice(0, 4))]


GPT = {"embedding": (50304, 32), "positions": (128, 32), "fc1": (128, 32), "fc2": (32, 128), "norm": (32,)}


@pytest.mark.parametrize("ranks", [1, 3, 4, 64])
def test_shares_are_equal_though_one_tensor_is_most_of_them(ranks):
    parts = [of_shape(key, shape) for key, shape in GPT.items()]
    elements, end = [0] * ranks, dict.fromkeys(GPT, 0)
    for part, rank, start, stop in shares.divided(parts, ranks):
        assert start == end[part.key]
        end[part.key] = stop
        elements[rank] += stop - start
    assert end == {key: math.prod(shape) for key, shape in GPT.items()}
    assert max(elements) <= 1.1 * sum(elements) / ranks


def test_more_ranks_than_elements_write_each_once():
    assert [(rank, start, stop) for _, rank, start, stop in shares.divided([of_shape("norm", (1,))], 8)] == [(7, 0, 1)]


def test_a_piece_says_where_it_is_in_the_stack_of_layers():
    layer = ShardedTensor.from_rank_offsets(
        "weight", torch.zeros(4, 2), (0, 5, 6), (1, 1, 3), replica_id=(0, 0, 0), prepend_axis_num=1
    )
    found = shares.piece(layer, (slice(1, 3), slice(0, 2)))
    assert (found.global_offset, found.local_shape, found.global_shape) == ((5, 5, 0), (1, 2, 2), (6, 12, 2))
    assert found.replica_id == 0


@pytest.mark.parametrize(("replica", "is_written"), [((0, 0, 3), True), ((1, 0, 0), False), ((0, 1, 0), False)])
def test_a_piece_of_a_copy_is_read_and_not_written(replica, is_written):
    part = ShardedTensor.from_rank_offsets("weight", torch.zeros(4, 2), replica_id=replica)
    assert is_main_replica(shares.piece(part, (slice(1, 3), slice(0, 2))).replica_id) == is_written


@pytest.mark.parametrize("axis", [0, 1])
def test_what_ranks_hold_of_a_gated_weight_fills_both_of_its_tensors(axis):
    shape = [4, 2, 3]
    values = torch.arange(24.0)
    weight = gated(torch.nn.Parameter(torch.zeros(shape)), axis)
    whole = torch.full(shape, -1.0)
    for start, stop in ((0, 5), (5, 6), (6, 19), (19, 24)):
        for found in distributed_states.pieces(weight, "exp_avg.", start, values[start:stop]):
            assert found.key == "exp_avg.fc1"
            place = whole
            for dim, (offset, length) in enumerate(zip(found.global_offset, found.local_shape, strict=True)):
                place = place.narrow(dim, offset, length)
            assert (place == -1).all()
            place.copy_(found.data)
    assert torch.equal(whole.flatten(), values)


def of_shape(key, shape):
    return ShardedTensor.from_rank_offsets(key, torch.empty(shape), replica_id=(0, 0, 0))


def gated(weight, axis):
    def build(key, whole, replica_id, _flattened_range):
        return [
            ShardedTensor.from_rank_offsets(key, half, (axis, number, 2), replica_id=replica_id)
            for number, half in enumerate(whole.tensor_split([whole.shape[axis] // 2], axis))
        ]

    return ShardedTensorFactory("fc1", weight, build, torch.cat, (0, 0, 0))
