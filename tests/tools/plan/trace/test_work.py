"""FLOPs, bytes and messages of operations."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.engine import groups
from pretrain.plugins.stand_in import observing, stand_in, within
from pretrain.tools.plan.stage_plan import Message, Operation
from pretrain.tools.plan.trace.planned_device import APART
from pretrain.tools.plan.trace.storages import StepPosition, Storages
from pretrain.tools.plan.trace.work import Follower, Work


@pytest.fixture
def work():
    """The work of a test, as of the first step of a plan."""
    position, counted = StepPosition(), Work(keys_of_a_query=32)
    position.begin_step(1)
    follower = Follower(position, Storages(APART), counted)
    with FakeTensorMode(), follower, observing(follower):
        yield counted


def operations(work: Work) -> dict[Operation, int]:
    return {operation: count for (_, operation), count in work.operations.items()}


def test_a_matmul_has_two_flops_for_each_product(work):
    a, b = torch.empty(3, 4, dtype=torch.bfloat16), torch.empty(4, 5, dtype=torch.bfloat16)
    a @ b
    a @ b
    assert operations(work) == {Operation(2.0 * 3 * 4 * 5, 2 * (12 + 20 + 15), "bf16"): 2}


def test_a_matmul_in_fp8_is_one_of_a_byte_an_entry(work):
    a, b = (torch.empty(16, 32, dtype=torch.float8_e4m3fn) for _ in range(2))
    scales, recipe = (torch.empty(1, 1), torch.empty(1, 1)), torch.nn.functional.ScalingType.TensorWise
    torch.nn.functional.scaled_mm(a, b.t(), scales[0], recipe, scales[1], recipe)
    assert operations(work) == {Operation(2.0 * 16 * 32 * 16, 2 * 16 * 32 + 2 * 4 + 2 * 16 * 16, "fp8"): 1}


def test_other_operations_have_bytes_alone(work):
    torch.empty(8).exp()
    assert operations(work) == {Operation(0.0, 2 * 8 * 4): 1}


def test_views_and_allocations_cost_nothing(work):
    torch.empty(8, 8).view(64)[:3].detach()
    assert operations(work) == {}


def test_an_operation_whose_output_lies_in_its_input_moves_nothing(work):
    """Whatever its schema says: that of `_unsafe_view`, with which matmuls of three dimensions end, names no alias."""
    whole = torch.empty(8, 8)
    torch.ops.aten._unsafe_view(whole, [64])
    assert operations(work) == {}
    whole.add_(1.0)  # in place, and yet it reads and writes
    assert operations(work) == {Operation(0.0, 2 * 64 * 4): 1}


def test_a_stand_in_reads_and_writes_its_tensors_once(work):
    """Attention's FLOPs follow from its inputs: 4 s^2 n d for causal halves of a forward pass, 2.5 times that back."""
    s, b, n, d = 64, 2, 4, 16

    def compute(query, key, value):
        return torch.empty_like(query).view(s, b, n * d), (query, key, value)

    inputs = [torch.empty(s, b, n, d, dtype=torch.float16, requires_grad=True) for _ in range(3)]
    within("attention", stand_in(compute))(*inputs).sum().backward()
    flops = 4 * b * n * s * s * d / 2
    found = {operation.flops for operation in operations(work) if operation.flops}
    assert found == {flops, 2.5 * flops}


@pytest.fixture
def world():
    """A world of eight ranks, of which this is the first; others are not there."""
    groups.join_planned_world(0, 8)
    yield
    groups.leave()


def test_messages_know_group_and_bytes(work, world):
    """All-gather and reduce-scatter move the whole tensor, whichever of their arguments that is."""
    pair = dist.new_group([0, 1])
    work.names[pair.group_name] = "tensor"
    part, whole = torch.empty(4), torch.empty(8)
    dist.all_reduce(whole, group=pair)
    dist.all_gather_into_tensor(whole, part, group=pair)
    dist.reduce_scatter_tensor(part, whole, group=pair)
    dist.isend(part, 1)
    found = {(message.kind, message.group, message.size, message.moved) for _, message in work.messages}
    assert found == {
        ("all-reduce", "tensor", 2, 32),
        ("all-gather", "tensor", 2, 32),
        ("reduce-scatter", "tensor", 2, 32),
        ("send", "world", 8, 16),
    }
    assert all(isinstance(message, Message) for _, message in work.messages)
