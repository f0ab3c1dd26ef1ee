"""Sharded files of a checkpoint in the three steps of megatron-core's asynchronous save (AsyncRequest).

Its end (save_state_dict_async_finalize) is not used: it communicates on the device and in the default group, which a
second thread must not. Neither is its forked process: see pretrain.bridge.megatron.checkpoint.
"""

from __future__ import annotations

import queue
from itertools import chain
from typing import TYPE_CHECKING, Any

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

from pretrain.bridge.megatron import checkpoint as bridge_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest

Results = list[Any]  # places of the tensors that a rank has written (torch.distributed.checkpoint.storage.WriteResult)


class ShardedFiles:
    """This rank's share of the sharded files, in host memory."""

    def __init__(self, directory: Path, writer: Any, index: Any, request: AsyncRequest, *, copies: bool) -> None:
        self._directory, self._writer, self._index = directory, writer, index
        self._write: Callable[..., None] | None = request.async_fn
        self._buckets: list[Any] = []
        if request.preload_fn is not None:
            self._buckets = request.preload_fn()  # waits for the device
            if copies:
                _copy_host_tensors(self._buckets, writer.write_buckets)
        writer.write_buckets = None  # else the tensors themselves would be kept until the files are written

    @classmethod
    def plan(cls, state: dict[str, Any], directory: Path, *, copies: bool) -> ShardedFiles:
        """Write common.pt, agree on who writes which tensor, and copy this rank's to host memory. Collective.

        Without `copies` tensors that are in host memory already are not copied, and must not change until they are
        written.
        """
        strategy = _Strategy("torch_dist", 1)
        request = dist_checkpointing.save(state, str(directory), sharded_strategy=strategy, async_sharded_save=True)
        return cls(directory, strategy.writer, strategy.index, request, copies=copies)

    def write(self, open_file: Callable[[str, str], Any]) -> Results:
        """Write and flush this rank's files, opened by `open_file`; not collective, and on any thread."""
        if self._write is None:
            return []
        done: queue.Queue[Any] = queue.Queue()
        with bridge_checkpoint.writing_through(open_file):
            self._write(0, self._buckets, done)
        self._buckets = []
        written = done.get_nowait()
        if isinstance(written, Exception):
            raise written
        return list(chain.from_iterable(written.values()))

    def write_index(self, of_all: Iterable[Results]) -> None:
        """Write the index and the format's name, from the results of all ranks; called by the first rank."""
        self._writer.finish(self._index, of_all)
        save_config(CheckpointingConfig("torch_dist", 1), str(self._directory))


class _Strategy(TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Keeps what the index is written with; the index is None on other ranks than the first."""

    writer: Any = None
    index: Any = None

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any) -> Any:
        self.writer, (_, self.index, _) = writer, save_state_dict_ret
        return super()._get_save_and_finalize_callbacks(writer, save_state_dict_ret)


def _copy_host_tensors(loaded: list[Any], planned: list[Any]) -> None:
    """Copy the tensors that were in host memory before, where `.to("cpu")` is the tensor itself."""
    for (_, _, (_, copies)), (_, _, (_, originals)) in zip(loaded, planned, strict=True):
        for number, (item, tensor) in enumerate(copies):
            if tensor is originals[number][1]:
                copies[number] = (item, tensor.clone())
            originals[number] = None  # gathered state, which nothing else holds, is not in memory twice
