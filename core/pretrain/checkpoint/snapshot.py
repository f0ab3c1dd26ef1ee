"""State of an engine at one iteration, complete in host memory, that is written at once or later."""

from __future__ import annotations

import queue
import re
import traceback
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

from pretrain.bridge.megatron import checkpoint as bridge_checkpoint
from pretrain.checkpoint import checksums, generators, shares
from pretrain.checkpoint.agreement import first_of, gathered
from pretrain.checkpoint.checksums import FileDigest, Recorder
from pretrain.checkpoint.folder import FORMAT
from pretrain.checkpoint.identity import identity
from pretrain.checkpoint.saved_schedule import schedule_state
from pretrain.errors import CheckpointError, OtherRankError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pretrain.checkpoint.contents import Saved
    from pretrain.collectives import Tree

Results = list[Any]  # places of the tensors that a rank has written (torch.distributed.checkpoint.storage.WriteResult)


class ShardedFiles:
    """This rank's share of the sharded files, in host memory, by megatron-core's asynchronous save (AsyncRequest).

    Not by its end (save_state_dict_async_finalize), which communicates on the device and in the default group, as a
    second thread must not, and not in its forked process: see pretrain.bridge.megatron.checkpoint.
    """

    def __init__(self, state: dict[str, Any], directory: Path, *, copies: bool) -> None:
        """Write common.pt, agree on who writes which tensor, and copy this rank's to host memory. Collective.

        Without `copies` tensors that are in host memory already are not copied, and must not change until the write.
        """
        strategy = _Strategy("torch_dist", 1)
        request = dist_checkpointing.save(
            state,
            str(directory),
            sharded_strategy=strategy,
            async_sharded_save=True,
            validate_access_integrity=False,  # torch's planner finds gaps and overlaps; this asks all ranks on each
        )
        self._directory, self._writer, self._index = directory, strategy.writer, strategy.index
        self._write: Callable[..., None] | None = request.async_fn
        self._buckets: list[Any] = []
        if request.preload_fn is not None:
            self._buckets = request.preload_fn()  # waits for the device
            if copies:
                _copy_host_tensors(self._buckets, self._writer.write_buckets)
        self._writer.write_buckets = None  # else the tensors themselves would be kept until the files are written

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
    """Writes this rank's share, and keeps what the index is written with: None on other ranks than the first."""

    writer: Any = None
    index: Any = None

    def async_save(self, sharded_state_dict: Any, checkpoint_dir: Path) -> Any:
        return super().async_save(dict(enumerate(shares.own(sharded_state_dict))), checkpoint_dir)

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


# errors of torch.save by a path, which does not say what the system's error was
_OF_TORCHS_ARCHIVES = re.compile("iostream error|inline_container|PytorchStreamWriter")
_LONGEST = 200  # longest part of an error's message that is shown, in characters
# written tensors of a rank, digests of its files, and the message for all ranks if something went wrong
Share = tuple[Results, dict[str, FileDigest], str | None]


def stays(file: Path) -> None:
    """Leave a complete file where it is."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checkpoint that is planned and in host memory, but for `copies=False`: see `take`."""

    directory: Path
    files: ShardedFiles
    send: Callable[[Path], None] = stays  # called with each file that is complete, the checksums last

    @classmethod
    def take(
        cls,
        engine: Saved,
        directory: Path,
        progress: Mapping[str, Any],
        *,
        copies: bool,
        send: Callable[[Path], None] = stays,
    ) -> Snapshot:
        """Take the engine's state for an empty folder; with `copies` it may train before the write. Collective."""
        try:
            return cls(directory, ShardedFiles(state_of(engine, progress), directory, copies=copies), send)
        except OSError as exc:
            raise _told(directory, exc) from exc
        except RuntimeError as exc:
            if not _OF_TORCHS_ARCHIVES.search(str(exc)):
                raise
            raise _told(directory, exc, "common.pt: ") from exc

    def write(self, tree: Tree | None = None) -> None:
        """Write it; all ranks together, each on any thread. It touches neither the device nor the engine.

        No other thread may use `tree` meanwhile. If one rank cannot write, every rank raises a CheckpointError.
        """
        failed: Exception | None = None
        recorder = Recorder()
        share: Share
        try:
            share = self.files.write(recorder.open), recorder.files, None
            for name in sorted(recorder.files):
                self.send(self.directory / name)
        except Exception as error:  # noqa: BLE001  whatever it is, the other ranks wait for this one's answer
            failed = error
            _free_what_was_written(error)
            share = [], {}, str(_told(self.directory, error))
        shares = gathered(share, tree)
        problem = None if shares is None else next((told for *_, told in shares if told), None)
        if shares is not None and problem is None:
            try:
                self.files.write_index([results for results, _, _ in shares])
                written = {name: file for _, files, _ in shares for name, file in files.items()}
                # The few small files that libraries write are read again for their digests.
                checksums.write(self.directory, written)
                for path in sorted(self.directory.iterdir(), key=lambda path: (path.name == checksums.FILE, path.name)):
                    if path.name not in written:  # each rank has sent its own
                        self.send(path)
            except Exception as error:  # noqa: BLE001  the same
                failed = error
                _free_what_was_written(error)
                problem = str(_told(self.directory, error))
        if problem := first_of(problem, tree):
            if failed is not None and not _is_of_disk(failed):
                raise failed
            raise (OtherRankError if failed is None else CheckpointError)(problem) from failed


def _free_what_was_written(error: BaseException | None) -> None:
    """Let an error's frames hold nothing: Python 3.12.1's collector crashes on a writer's views (cpython#111211)."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def state_of(engine: Saved, progress: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that is saved; collective. Values that are not sharded are the first rank's: others read no data."""
    state = {name: part for name, part in engine.state.sharded().items() if part}  # else ranks differ in empty ones
    state |= first_of(
        {
            "format": FORMAT,
            "progress": dict(progress),
            "schedule": schedule_state(engine.schedule),
            "counters": engine.state.counters(),
            "layout": generators.layout(),
            **identity(engine.recipe, engine.vocab_size),
        }
    )
    state["rng"] = generators.sharded_states()
    return state


def _told(directory: Path, error: Exception, file: str = "") -> CheckpointError:
    """Return the error for all ranks; its reason is the OSError behind a failure of torch's writer, if any."""
    if isinstance(error, StoreError):
        return error
    reason = first_line(cause_of(error))
    if _is_of_disk(error):
        todo = "Free disk space, or set checkpoint.save to another folder."
        return CheckpointError(f"{directory} cannot be written: {file}{reason}\n{todo}")
    failed = f"a rank has failed with {type(error).__name__}: {reason}"
    return CheckpointError(f"{directory} is not complete: {failed}\nIts own log has the traceback.")


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message, cut where it is long; some list every tensor."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


def _is_of_disk(error: BaseException) -> bool:
    return (
        isinstance(error, StoreError)
        or isinstance(cause_of(error), OSError)
        or _OF_TORCHS_ARCHIVES.search(str(error)) is not None
    )


def cause_of(error: BaseException) -> BaseException:
    """Return the OSError behind a library's error, or the error itself."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause or error
