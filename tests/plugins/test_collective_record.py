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


def batch(number, *parts, **ended):
    """Return the entries of `batch_isend_irecv`: its parts stay "scheduled", the entry of all of them ends."""
    values = {"is_p2p": True, "p2p_seq_id": number}
    waiting = [{**ENTRY, **values, "profiling_name": f"nccl:{part}", "state": "scheduled"} for part in parts]
    return [*waiting, {**ENTRY, **values, "profiling_name": "nccl:coalesced", **ended}]


def test_messages_of_a_batch_end_with_it():
    over = batch(6, "send 0->1", "recv 0<-1", state="completed", retired=True)
    found = collectives_of({"entries": [*over, *batch(7, "send 0->1", state="started")]})
    assert [each.pending for each in found] == [False, False, False, True, True]


def test_parts_of_an_uneven_all_gather_end_with_it():
    part = {**ENTRY, "profiling_name": "nccl:_broadcast_oop", "state": "scheduled"}
    message = {**part, "is_p2p": True, "p2p_seq_id": 3, "profiling_name": "nccl:send 0->1"}  # its numbers are others
    over = {**ENTRY, "profiling_name": "nccl:coalesced", "state": "completed"}
    assert [each.pending for each in collectives_of({"entries": [part, message, over]})] == [False, True, False]


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
