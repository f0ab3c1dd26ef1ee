"""megatron-core's checkpoints: written by the training process itself, and read without executing code.

megatron-core 0.16.1 forks a process per file (FileSystemWriterAsync.write_preloaded_data_multiproc) and starts a
manager process by spawn to receive the result (_get_write_results_queue). If a writer dies, for lack of memory or of a
package, the training waits forever; the manager imports the main program again; and a fork of a process with threads
copies locks that are held. Files are written on the thread that asks for it instead, also in an asynchronous save.

torch's DefaultLoadPlanner.load_bytes reads the objects of a sharded checkpoint with `weights_only=False`.

FileSystemWriterAsync.preload_tensors copies to the host with non_blocking, for which torch asks the device for
page-locked memory; a device without it may have no allocator of any and raise.
"""

from __future__ import annotations

import inspect
import queue
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def install(*, pinned_memory: bool) -> None:
    """Replace the forked writers, the manager's queue and the reader of objects; megatron.core must be imported."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async  # noqa: PLC0415  after the bridge
    from megatron.core.dist_checkpointing.strategies import torch as torch_strategy  # noqa: PLC0415

    writer = filesystem_async.FileSystemWriterAsync
    filesystem_async._get_write_results_queue = queue.Queue  # noqa: SLF001
    filesystem_async._process_memory = lambda: 0  # noqa: SLF001  needs psutil, only for a debug line
    # Unwrapped: it switches Python's garbage collector off, which in a forked process was no other thread's.
    write = inspect.unwrap(writer.write_preloaded_data)
    writer.write_preloaded_data_multiproc = staticmethod(partial(_write_all, write))
    torch_strategy.MCoreLoadPlanner.load_bytes = _load_checked
    if not pinned_memory:
        writer.preload_tensors = staticmethod(_blocking(inspect.unwrap(writer.preload_tensors)))


@contextmanager
def writing_through(open_file: Callable[[str, str], Any]) -> Iterator[None]:
    """Let megatron-core open the files of sharded state with `open_file` instead of `open`; one save at a time."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async  # noqa: PLC0415  after the bridge

    filesystem_async.open = open_file  # a module's global hides the built-in
    try:
        yield
    finally:
        del filesystem_async.open


def _write_all(
    write: Any,
    transforms: list[Any],
    use_msc: bool,  # noqa: ARG001  megatron-core's signature
    rank: int,  # noqa: ARG001
    write_buckets: list[Any],
    results: queue.Queue[Any],
) -> None:
    """Write every bucket, one file each, and report the results, or the first error."""
    written: dict[int, Any] = {}
    for number, bucket in enumerate(write_buckets):
        done: queue.Queue[Any] = queue.Queue()
        pending: queue.Queue[int] = queue.Queue()
        pending.put(number)
        write(transforms, number, bucket, done, pending, use_fsync=True)
        _, outcome = done.get()
        if isinstance(outcome, Exception):
            results.put(outcome)
            return
        written[number] = outcome
    results.put(written)


def _blocking(preload: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(preload)
    def preload_tensors(write_buckets: list[Any], non_blocking: bool = True) -> Any:  # noqa: ARG001  its signature
        return preload(write_buckets, non_blocking=False)

    return preload_tensors


def _load_checked(planner: Any, read_item: Any, value: Any) -> None:
    torch.load(value, weights_only=True)  # raises if it is more than data
    value.seek(0)
    DefaultLoadPlanner.load_bytes(planner, read_item, value)
