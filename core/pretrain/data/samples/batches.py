"""Read micro-batches in Megatron's order, from any sample on."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import warnings
import weakref
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch.utils.data import DataLoader

from pretrain.data.prefetch import Prefetcher, exit_with_parent
from pretrain.data.samples.sequence_pieces import ALONE, document_ends
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from pretrain.data.samples.sequence_pieces import Batch, ContextRank

_GRACE = 60  # seconds that a worker reads on after SIGTERM
_JOIN_SECONDS = 5.0  # seconds that `close` waits for the batch that is being read; torch waits as long for a worker
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)  # by workers, which survive them
_KEYS = ("tokens", "labels", "loss_mask", "position_ids")


class SampleDataset(Protocol):
    """A map-style dataset of the samples that `datasets.Datasets` describes."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one sample."""


class MicroBatches:
    """An iterator over the micro-batches of one data-parallel rank, from sample `consumed_samples` on.

    Each block of micro_batch_size x data_parallel_size samples is divided among the ranks in contiguous runs, as by
    Megatron's pretraining sampler: a step at sample n with a global batch of b reads n to n + b - 1, whatever the
    layout. The number of micro-batches per step may change. Ranks of one model replica are given the same data-parallel
    rank.
    """

    def __init__(
        self,
        dataset: SampleDataset,
        *,
        micro_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        consumed_samples: int,
        num_workers: int,
        context: ContextRank = ALONE,
        eod: int | None = None,
        prepare_worker: Callable[[], None] | None = None,
        pin_memory: bool = False,
        cyclic: bool = False,
    ) -> None:
        """Take the dataset; with `cyclic` it begins again after the last sample, else its end is an error.

        `context` says which part of the sequences this rank reads; with `eod`, which ends a document, batches tell
        their documents.
        `pin_memory` copies batches to page-locked memory. Each of `num_workers` processes (0: none) calls
        `prepare_worker`, which is pickled, before it unpickles the dataset.
        """
        self._length = len(dataset)
        self._block = micro_batch_size * data_parallel_size
        self.consumed_samples = consumed_samples
        indices = _block_indices(
            length=None if cyclic else self._length,
            modulus=self._length,
            begin=consumed_samples,
            block=self._block,
            run=slice(data_parallel_rank * micro_batch_size, (data_parallel_rank + 1) * micro_batch_size),
        )
        sent = _Sent(dataset, prepare_worker)
        collate = partial(_collate, context, eod)
        with _signals_wait_in_workers():
            loader = iter(_loader(sent, indices, collate, num_workers=num_workers, pin_memory=pin_memory))
        read = map(_tensors, loader)
        # torch's loader takes half a millisecond to return a batch that is ready. In a thread this overlaps with a step
        # that releases the GIL.
        self._read: Iterator[Batch] = Prefetcher(read) if num_workers else read
        # Runs in the thread that releases the batches: the reading thread would be too late at exit, where torch no
        # longer ends the workers and multiprocessing waits for them.
        self._end = weakref.finalize(self, _end, self._read, loader)
        if num_workers:
            atexit.register(self._end)  # before multiprocessing waits for workers that got no signal to exit

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """Return the next micro-batch, on the CPU; DataError: too few samples are left.

        Its keys are `tokens` and `labels` [micro_batch_size, seq_length / context-parallel size] int64, `loss_mask`
        float32 and `position_ids` int64 of the same shape; `num_tokens`, the sum of the loss mask over whole sequences,
        float32; and `documents`, int32 [pieces, 2, documents + 1], the ends of each piece's queries and keys as
        `pretrain.plugins.signatures.Documents` has them, or None, which means plain causal.
        """
        try:
            batch = next(self._read)
        except StopIteration:
            msg = (
                f"the data ends: it has {self._length} samples, {self.consumed_samples} are read, and the next "
                f"micro-batches need {self._block}.\nDid train_iters or train_samples change? "
                "The datasets are built for them."
            )
            raise DataError(msg) from None
        self.consumed_samples += self._block
        return batch

    def close(self) -> None:
        """End the worker processes; no more batches follow."""
        self._end()
        self._read = iter(())


def _end(read: Iterator[Batch], loader: Iterator[Any]) -> None:
    if isinstance(read, Prefetcher):
        read.close(_JOIN_SECONDS)
    # torch does this when the iterator is collected, but the traceback of an error in it keeps it alive.
    getattr(loader, "_shutdown_workers", lambda: None)()


def _block_indices(*, length: int | None, modulus: int, begin: int, block: int, run: slice) -> Iterator[list[int]]:
    """Yield one rank's share of each block, until less than a block of `length` is left, or forever."""
    while length is None or begin + block <= length:
        yield [index % modulus for index in range(begin + run.start, begin + run.stop)]
        begin += block


def _loader(
    dataset: _Sent,
    indices: Iterator[list[int]],
    collate: Callable[..., _Arrays],
    *,
    num_workers: int,
    pin_memory: bool,
) -> DataLoader[Any]:
    workers: dict[str, Any] = {}
    if num_workers:
        # spawn: a fork of this process would copy the locks of its threads (gloo, the device's driver, OpenMP), and a
        # forkserver would be ended by a SIGTERM sent to the process group, and its workers with it.
        workers = {"multiprocessing_context": "spawn", "worker_init_fn": _start_worker, "prefetch_factor": 4}
    return DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_sampler=indices,
        num_workers=num_workers,
        collate_fn=collate,
        pin_memory=pin_memory,
        # A loader draws a seed for its workers when it starts. Drawn from the default generator, that would change
        # every dropout mask after a resume.
        generator=torch.Generator(),
        **workers,
    )


class _Sent:
    """A dataset that prepares the worker it is sent to, and is unpickled without warnings, which were shown already."""

    def __init__(self, dataset: SampleDataset, prepare: Callable[[], None] | None) -> None:
        self._dataset, self._prepare = dataset, prepare

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._dataset[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (self._prepare, pickle.dumps(self._dataset))


def _receive(prepare: Callable[[], None] | None, pickled: bytes) -> _Sent:
    if prepare is not None:
        prepare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Sent(pickle.loads(pickled), prepare)  # noqa: S301  from this run's own training process


def _start_worker(worker: int) -> None:  # noqa: ARG001  torch's signature
    """Survive Ctrl-C and Slurm's SIGTERM to all processes: the training process must finish its step and save."""
    exit_with_parent()
    # Skips Python's own cleanup, which aborts in the presence of the thread that sends a batch.
    atexit.register(os._exit, 0)
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):  # the training process answers the last two
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_GRACE))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)


@contextmanager
def _signals_wait_in_workers() -> Iterator[None]:
    """Start workers in a block with these signals blocked, which come in the second of their imports too."""
    resource_tracker.ensure_running()  # Python's own process, whose start would unblock them again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Arrays:
    """A batch sent by a worker. Arrays through a pipe arrive sooner than tensors in shared memory."""

    def __init__(self, arrays: dict[str, npt.NDArray[Any] | None]) -> None:
        self._arrays = arrays

    def tensors(self) -> Batch:
        """Return the batch as tensors that share the memory."""
        return {key: None if array is None else torch.from_numpy(array) for key, array in self._arrays.items()}

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory; the loader calls it."""
        return {key: None if tensor is None else tensor.pin_memory() for key, tensor in self.tensors().items()}


def _tensors(read: _Arrays | Batch) -> Batch:
    return read.tensors() if isinstance(read, _Arrays) else read


def _collate(context: ContextRank, eod: int | None, samples: Sequence[dict[str, Any]]) -> _Arrays:
    batch: Batch = {key: torch.stack([sample[key] for sample in samples]) for key in _KEYS}
    tokens = batch["tokens"]
    ends = None if eod is None or tokens is None else document_ends(tokens, eod)
    part = context.part(batch, ends)
    return _Arrays({key: None if tensor is None else tensor.numpy() for key, tensor in part.items()})
