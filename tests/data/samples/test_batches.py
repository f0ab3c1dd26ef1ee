"""Micro-batches: every sample once, in steps that do not depend on the layout, from any position on."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.samples.numbered_samples import SEQ_LENGTH, MegatronsSamples, NumberedSamples, begin_slowly, numbers
from launch.rank_processes import wait_for
from pretrain.bridge.megatron import prepare_to_read
from pretrain.data.samples.batches import MicroBatches
from pretrain.data.samples.sequence_pieces import ContextRank
from pretrain.errors import DataError


def batches(length=1000, micro_batch_size=2, rank=0, size=1, consumed=0, num_workers=0, **options):
    return MicroBatches(
        NumberedSamples(length, broken=options.pop("broken", None)),
        micro_batch_size=micro_batch_size,
        data_parallel_rank=rank,
        data_parallel_size=size,
        consumed_samples=consumed,
        num_workers=num_workers,
        **options,
    )


def step(ranks, micro_batches):
    """The samples of one step over all ranks, rank after rank."""
    return [number for rank in ranks for _ in range(micro_batches) for number in numbers(next(rank))]


class TestBatch:
    def test_shapes_and_dtypes(self):
        batch = next(batches(micro_batch_size=3))
        described = {key: value if value is None else (tuple(value.shape), value.dtype) for key, value in batch.items()}
        assert described == {
            "tokens": ((3, SEQ_LENGTH), torch.int64),
            "labels": ((3, SEQ_LENGTH), torch.int64),
            "loss_mask": ((3, SEQ_LENGTH), torch.float32),
            "position_ids": ((3, SEQ_LENGTH), torch.int64),
            "num_tokens": ((), torch.float32),
            "documents": None,
        }

    def test_documents_end_with_their_token_and_with_the_sample(self):
        """Sample 1 consists of the token that ends a document."""
        documents = next(batches(micro_batch_size=3, eod=1))["documents"]
        assert documents.dtype == torch.int32
        assert documents.tolist() == [[[0, 4, 5, 6, 7, 8, 12]] * 2]

    @pytest.mark.parametrize("rank", [0, 1])
    def test_a_context_parallel_rank_reads_its_two_pieces(self, rank):
        batch = next(batches(micro_batch_size=2, context=ContextRank(rank, 2)))
        assert batch["position_ids"].tolist() == [[0, 3], [1, 2]][rank : rank + 1] * 2
        assert batch["num_tokens"].item() == 8  # of the whole sequences

    def test_labels_stay_with_their_tokens(self):
        batch = next(batches(consumed=7))
        assert torch.equal(batch["labels"], batch["tokens"] + 1)


layouts = st.sampled_from([(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (3, 4), (4, 3), (1, 12), (12, 1), (6, 2)])
"""(micro_batch_size, data_parallel_size) whose product divides 12."""


class TestOrder:
    def test_neighbours_go_to_one_rank(self):
        """As by Megatron's pretraining sampler."""
        first, second = (batches(micro_batch_size=2, rank=rank, size=2) for rank in range(2))
        assert [numbers(next(first)) for _ in range(2)] == [[0, 1], [4, 5]]
        assert [numbers(next(second)) for _ in range(2)] == [[2, 3], [6, 7]]

    @pytest.mark.full
    @given(layout=layouts, consumed=st.integers(0, 100), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5))
    def test_a_step_reads_the_next_samples_in_any_layout(self, layout, consumed, sizes):
        """The global batch changes from step to step, as in a ramp-up."""
        micro_batch_size, size = layout
        ranks = [batches(1000, micro_batch_size, rank, size, consumed) for rank in range(size)]
        position = consumed
        for blocks in sizes:
            global_batch = 12 * blocks
            read = step(ranks, global_batch // (micro_batch_size * size))
            assert sorted(read) == list(range(position, position + global_batch))
            position += global_batch
            assert {rank.consumed_samples for rank in ranks} == {position}

    @given(layout=layouts, length=st.integers(12, 200))
    def test_every_sample_is_read_once(self, layout, length):
        micro_batch_size, size = layout
        block = micro_batch_size * size
        ranks = [batches(length, micro_batch_size, rank, size) for rank in range(size)]
        read = step(ranks, length // block)
        assert sorted(read) == list(range(length // block * block))
        for rank in ranks:
            with pytest.raises(DataError):
                next(rank)

    @given(before=layouts, after=layouts, steps=st.integers(0, 10))
    def test_a_resumed_run_continues_with_the_next_sample_in_any_layout(self, before, after, steps):
        ranks = [batches(1000, before[0], rank, before[1]) for rank in range(before[1])]
        read = [number for _ in range(steps) for number in step(ranks, 12 // (before[0] * before[1]))]
        resumed = [batches(1000, after[0], rank, after[1], ranks[0].consumed_samples) for rank in range(after[1])]
        read += step(resumed, 12 // (after[0] * after[1]))
        assert sorted(read) == list(range(12 * (steps + 1)))


class TestEnd:
    def test_of_the_data_is_an_error_that_says_how_much_was_read(self):
        iterator = batches(length=7, micro_batch_size=2)
        assert [numbers(next(iterator)) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(DataError, match="7 samples, 6 are read, and the next micro-batches need 2") as caught:
            next(iterator)
        assert len(str(caught.value).splitlines()) <= 3

    def test_beyond_it_there_is_nothing_to_resume(self):
        with pytest.raises(DataError, match="10 samples, 50 are read"):
            next(batches(length=10, consumed=50))

    @given(consumed=st.integers(0, 50), size=st.integers(1, 3))
    def test_cyclic_batches_begin_again(self, consumed, size):
        ranks = [batches(7, 2, rank, size, consumed, cyclic=True) for rank in range(size)]
        read = [number for _ in range(5) for rank in ranks for number in numbers(next(rank))]
        assert read == [number % 7 for number in range(consumed, consumed + 10 * size)]

    def test_after_close_there_are_no_more(self):
        iterator = batches()
        iterator.close()
        with pytest.raises(DataError):
            next(iterator)


def test_the_training_processs_random_numbers_are_left_alone():
    """A resumed run starts its loader once more than an uninterrupted one, and must draw the same dropout."""
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    next(batches())
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.ranks
class TestWorkers:
    def test_give_the_same_batches(self):
        alone, helped = batches(100, 3, consumed=5), batches(100, 3, consumed=5, num_workers=1)
        for _ in range(20):
            expected, given = next(alone), next(helped)
            assert all(torch.equal(expected[key], given[key]) for key in ("tokens", "labels", "loss_mask"))
            assert given["documents"] is None
        helped.close()

    @pytest.mark.full
    def test_import_megatron_core_without_the_compiler(self):
        """The compiler's imports take two seconds; a worker calls nothing that is compiled."""
        iterator = MicroBatches(
            MegatronsSamples(10), micro_batch_size=2, data_parallel_rank=0, data_parallel_size=1, consumed_samples=0,
            num_workers=1, prepare_worker=prepare_to_read,
        )  # fmt: skip
        assert numbers(next(iterator)) == [0, 0]
        iterator.close()

    @pytest.mark.full
    def test_prefetching_does_not_end_the_data_early(self):
        iterator = batches(10, 2, num_workers=1)
        assert [numbers(next(iterator)) for _ in range(5)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
        with pytest.raises(DataError):
            next(iterator)

    @pytest.mark.full
    def test_end_with_the_reader_of_their_batches(self):
        iterator, worker = read_by_a_worker()
        del iterator
        worker.join(60)
        assert not worker.is_alive()

    @pytest.mark.full
    def test_one_that_is_killed_is_an_error(self):
        iterator, worker = read_by_a_worker()
        with pytest.raises(RuntimeError, match=rf"DataLoader worker \(pid(\(s\))? {worker.pid}\)"):
            kill_and_read(worker.pid, iterator)
        iterator.close()

    @pytest.mark.full
    @pytest.mark.parametrize("left", ["", pytest.param("del batches", marks=pytest.mark.full)])
    def test_a_worker_that_reads_does_not_delay_the_exit(self, program, left):
        """At exit torch no longer ends the workers, and a worker takes a minute to end after SIGTERM."""
        process = program(LEAVES.format(left=left))
        assert process.wait(300) == 0
        assert process.stdout.read() == b"0\n"  # not ended by the alarm that SIGTERM sets

    @pytest.mark.full
    def test_an_error_of_theirs_is_raised_in_its_place(self):
        iterator = batches(10, 2, num_workers=1, broken=5)
        assert [numbers(next(iterator)) for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(ValueError, match="sample 5 is broken"):
            next(iterator)
        iterator.close()

    @pytest.mark.full
    def test_leave_signals_to_the_training_process(self, program):
        """Ctrl-C, and Slurm's SIGTERM, reach the workers too; the step is finished all the same."""
        process = program()
        os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == b"read 20 more\n"
        assert process.wait(300) == 0

    def test_survive_signals_that_come_while_they_are_started(self, tmp_path):
        others = multiprocessing.active_children()
        started = tmp_path / "started"
        iterator = batches(10, 1, num_workers=1, prepare_worker=partial(begin_slowly, started))
        (worker,) = [child for child in multiprocessing.active_children() if child not in others]
        wait_for(started.exists, "the worker")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
            os.kill(worker.pid, number)
        (tmp_path / "started.on").touch()
        assert numbers(next(iterator)) == [0]
        iterator.close()

    def test_end_when_their_parent_is_killed(self, program):
        process = program()
        group = _group(process.pid)
        assert len(group) >= 2
        process.kill()
        process.wait(30)
        deadline = time.monotonic() + 120
        while _group(process.pid):
            assert time.monotonic() < deadline, "workers outlive their parent"
            time.sleep(0.05)


def read_by_a_worker():
    """Return batches of which one is read, and the process that reads them."""
    others = multiprocessing.active_children()
    iterator = batches(10**6, num_workers=1)
    next(iterator)
    (worker,) = [child for child in multiprocessing.active_children() if child not in others]
    return iterator, worker


def kill_and_read(worker, iterator):
    os.kill(worker, signal.SIGKILL)
    while True:
        next(iterator)


LEAVES = """
import atexit

if __name__ == "__main__":
    workers = []
    atexit.register(lambda: print(*(worker.exitcode for worker in workers), flush=True))  # after multiprocessing's
    import multiprocessing

    from data.samples.numbered_samples import NumberedSamples
    from pretrain.data.samples.batches import MicroBatches

    batches = MicroBatches(
        NumberedSamples(10**6, seconds=0.5), micro_batch_size=1, data_parallel_rank=0, data_parallel_size=1,
        consumed_samples=0, num_workers=1,
    )
    next(batches)
    workers += multiprocessing.active_children()
    {left}
    print("ready", flush=True)
"""
PROGRAM = """
import signal
from data.samples.numbered_samples import NumberedSamples
from pretrain.data.samples.batches import MicroBatches

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: None)
    interrupted = []
    signal.signal(signal.SIGINT, lambda *_: interrupted.append(1))
    batches = MicroBatches(
        NumberedSamples(10**6), micro_batch_size=2, data_parallel_rank=0, data_parallel_size=1, consumed_samples=0,
        num_workers=1,
    )
    next(batches)
    print("ready", flush=True)
    while not interrupted:
        next(batches)
    read = [next(batches) for _ in range(20)]
    print(f"read {len(read)} more", flush=True)
"""


@pytest.fixture
def program(tmp_path, forked_python):
    """Start a process that reads batches with a worker; PROGRAM until it gets SIGINT, then twenty more."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    processes = []

    def start(program=PROGRAM):
        (tmp_path / "main.py").write_text(program)
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "main.py")], env=environment, stdout=subprocess.PIPE, start_new_session=True
        )
        processes.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in processes:
        if _group(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def _group(leader):
    """The processes of a group that still run."""
    running = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader and fields[0] != "Z":
            running.append(int(stat.parent.name))
    return running
