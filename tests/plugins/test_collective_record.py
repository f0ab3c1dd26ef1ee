"""The recorder of torch: what gloo and NCCL write in it."""

import pytest
import torch
import torch.distributed as dist

from pretrain.cpu.backend import CpuBackend
from pretrain.plugins.collective_record import NO_PEER, collectives_of

ENTRY = {
    "process_group": ("7", "TENSOR_MODEL_PARALLEL_GROUP"),
    "collective_seq_id": 3,
    "p2p_seq_id": 5,
    "profiling_name": "nccl:all_reduce",
    "time_created_ns": 2_000_000_000,
    "input_sizes": [[4, 8]],
    "input_dtypes": ["Float"],
    "state": "started",
    "retired": False,
    "is_p2p": False,
}


def one(**values):
    return collectives_of({"entries": [{**ENTRY, **values}]})[0]


def test_a_collective_of_a_device():
    found = one()
    assert (found.library, found.operation, found.group) == ("nccl", "all_reduce", "TENSOR_MODEL_PARALLEL_GROUP")
    assert (found.number, found.shapes, found.dtype, found.called) == (3, ((4, 8),), "float32", 2.0)


@pytest.mark.parametrize(
    ("state", "retired", "pending"),
    [("started", False, True), ("completed", False, False), ("scheduled", True, False), ("scheduled", False, True)],
)
def test_it_is_pending_until_it_has_ended(state, retired, pending):
    assert one(state=state, retired=retired).pending == pending


@pytest.mark.parametrize(
    ("name", "peer"), [("nccl:send 0->1", 12), ("nccl:recv 1<-0", 10), ("nccl:coalesced", NO_PEER)]
)
def test_a_message_names_the_other_rank_of_the_world(monkeypatch, name, peer):
    groups = {"7": ("PIPELINE_MODEL_PARALLEL_GROUP", (10, 12))}
    monkeypatch.setattr("pretrain.plugins.collective_record.groups_by_name", lambda: groups)
    found = one(profiling_name=name, is_p2p=True)
    assert (found.peer, found.number, found.is_message) == (peer, 5, True)


def test_gloo_is_recorded():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.new_group([0], group_desc="mine")
        before = [each for each in CpuBackend().recent_collectives() if each.group == "mine"]
        dist.all_reduce(torch.ones(3), group=group)
        last = [each for each in CpuBackend().recent_collectives() if each.group == "mine"][len(before) :]
        # Its end is noted a moment later, by a thread of gloo's.
        assert [(each.operation, each.ranks, each.shapes) for each in last] == [("all_reduce", (0,), ((3,),))]
    finally:
        dist.destroy_process_group()
