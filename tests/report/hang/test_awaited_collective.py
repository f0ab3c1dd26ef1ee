"""Collective that a main thread waits in, by its stack and the recorder."""

from pathlib import Path

import pytest

import pretrain
from pretrain.plugins.collective_record import BESIDE
from pretrain.report.hang import awaited_collective
from pretrain.report.hang.awaited_collective import Frame, Stack, awaited, training_first
from report.hang.ranks import DP, PP, called

OLD, NEW = called(DP, number=1, called=1.0), called(number=9, called=2.0)
P2P = "megatron/core/pipeline_parallel/p2p_communication.py"


def found(*frames, pending=(OLD, NEW), rank=1, seconds=0.0, since=100.0):
    return awaited([Frame(*frame) for frame in frames], pending, rank, {PP: (0, 1, 2)}, seconds=seconds, since=since)


def test_the_files_by_which_the_writing_of_checkpoints_is_known_are_there():
    core = Path(pretrain.__file__).parent
    assert [
        file for file in (awaited_collective._WRITING, awaited_collective._SAVES) if not (core / file).is_file()
    ] == []


def test_a_checkpoint_that_is_written_by_the_main_thread_waits_in_a_group_of_the_training():
    written = ("pretrain/checkpoint/agreement.py", 2, "first_of")
    assert found(("torch/distributed/distributed_c10d.py", 1, "broadcast"), written) is NEW


def test_a_call_of_torch_waits_in_the_latest():
    assert found(("torch/distributed/distributed_c10d.py", 1, "all_reduce")) is NEW


def test_a_library_without_names_of_operations_gets_that_of_the_call():
    waits_in = found(("torch/distributed/distributed_c10d.py", 1, "all_reduce"), pending=[called(operation="")])
    assert waits_in.operation == "all_reduce"


@pytest.mark.parametrize("source", ["self.handle.wait()", "loss.item()", "torch.cuda.synchronize()"])
def test_a_line_that_waits_waits_in_the_oldest(source):
    assert found(("pretrain/a.py", 1, "f", source)) is OLD


def test_other_code_waits_in_nothing_though_a_collective_runs_beside_it():
    assert found(("pretrain/a.py", 1, "f", "time.sleep(1)")) is None


@pytest.mark.parametrize(
    ("operation", "peer"),
    [("recv_forward", 0), ("recv_backward", 2), ("send_forward", 2), ("send_backward_recv_forward", 0)],
)
def test_a_message_between_stages_waits_for_its_neighbour(operation, peer):
    waits_in = found((P2P, 1, "_communicate", "req.wait()"), (P2P, 2, operation))
    assert (waits_in.operation, waits_in.peer, waits_in.is_message) == (operation, peer, True)


def test_a_message_that_is_not_recorded_is_waited_for_since_the_last_movement():
    assert found((P2P, 1, "_communicate", "req.wait()"), (P2P, 2, "recv_forward"), pending=[]).called == 100.0


def test_the_interleaved_schedule_waits_by_handles():
    schedules = "megatron/core/pipeline_parallel/schedules.py"
    assert found((schedules, 1, "f", "recv_next_wait_handle.wait()")).peer == 2


def test_a_recorded_message_is_taken_as_it_is():
    recorded = called(PP, is_message=True, operation="send", peer=0)
    assert found((P2P, 1, "_communicate"), (P2P, 2, "send_forward"), pending=[recorded]) is recorded


def test_a_recorded_message_without_its_other_rank_gets_it_by_the_call():
    recorded = called(PP, is_message=True, operation="send", shapes=((2, 3),))
    waits_in = found((P2P, 1, "_communicate"), (P2P, 2, "send_forward"), pending=[recorded])
    assert (waits_in.peer, waits_in.shapes) == (2, ((2, 3),))


def test_a_checkpoints_thread_waits_in_its_own_collectives():
    beside = called(BESIDE, operation="gather", library="gloo", called=1.0)
    gathers = ("torch/distributed/distributed_c10d.py", 1, "gather_object")
    written = ("pretrain/checkpoint/agreement.py", 2, "gathered")
    assert found(gathers, written, pending=[beside, NEW]) is beside


def test_collectives_of_other_threads_are_none_of_the_main_one():
    beside = called(BESIDE, operation="broadcast", library="gloo", called=3.0)
    assert found(("torch/distributed/distributed_c10d.py", 1, "all_reduce"), pending=[NEW, beside]) is NEW
    assert found(("pretrain/a.py", 1, "f", "handle.wait()"), pending=[beside]) is None


@pytest.mark.parametrize(
    ("library", "when", "seconds", "waits"),
    [("nccl", 99, 60, True), ("gloo", 99, 60, False), ("nccl", 150, 60, False), ("nccl", 99, 0.5, False)],
)
def test_a_main_thread_whose_devices_queue_is_full_stands_at_any_line(library, when, seconds, waits):
    """It has stood there since 100, by the clock of the calls; what that clock says now has no part in it."""
    oldest = called(library=library, called=float(when))
    assert (found(("pretrain/a.py", 1, "f", "x = x * 2"), pending=[oldest], seconds=seconds) is oldest) == waits


def test_code_that_a_message_calls_is_no_wait():
    assert found(("mine.py", 1, "f"), (P2P, 2, "send_forward")) is None


IN_BACKWARD = Stack("MainThread", (Frame("torch/autograd/graph.py", 1, "f", "Variable._engine.run_backward(  # C++"),))
ELSEWHERE = Stack("MainThread", (Frame("a.py", 1, "f", "time.sleep(1)"),))
AUTOGRAD = Stack("a thread that Python did not start", (Frame("torch/distributed/d.py", 2, "all_reduce"),))
DUMMY = Stack("Dummy-7", (Frame("mine.py", 2, "backward"),))
READER = Stack("Thread-1", (Frame("queue.py", 3, "get"),))


def test_a_devices_backward_pass_is_in_a_thread_of_autograds():
    assert training_first([IN_BACKWARD, READER, AUTOGRAD]) == [AUTOGRAD, IN_BACKWARD, READER]
    assert training_first([IN_BACKWARD, DUMMY])[0] == DUMMY


def test_a_main_thread_that_waits_for_a_checkpoint_is_where_its_thread_is():
    joins = Frame("threading.py", 1, "join"), Frame("pretrain/checkpoint/background.py", 2, "wait")
    waits, writes = Stack("MainThread", joins), Stack("checkpoint", (Frame("site/disk.py", 3, "fsync"),))
    assert training_first([waits, READER, writes]) == [writes, waits, READER]
    assert training_first([waits, READER])[0] == waits
    assert training_first([ELSEWHERE, writes])[0] == ELSEWHERE


def test_everything_else_is_in_the_main_thread():
    assert training_first([ELSEWHERE, AUTOGRAD])[0] == ELSEWHERE
    assert training_first([IN_BACKWARD, READER])[0] == IN_BACKWARD
    assert training_first([]) == []
