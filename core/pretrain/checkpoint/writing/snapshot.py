"""State of an engine at one iteration, complete in host memory, that is written at once or later."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.checkpoint import checksums, generators
from pretrain.checkpoint.digest import FileDigest, Recorder
from pretrain.checkpoint.identity import identity
from pretrain.checkpoint.writing.agreement import first_of, gathered
from pretrain.checkpoint.writing.sharded_files import Results, ShardedFiles
from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch.distributed as dist

    from pretrain.checkpoint.contents import Saved

FORMAT = 3
"""Version of the format; a new one when older readers would misread it."""

_OF_TORCHS_ARCHIVES = re.compile("iostream error|inline_container|PytorchStreamWriter")
"""Errors of torch.save by a path, which does not say what the system answered."""

_LONGEST = 200
"""Longest part of an error's message that is shown, in characters."""

Share = tuple[Results, dict[str, FileDigest], str | None]
"""Written tensors of a rank, digests of its files, and what went wrong."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checkpoint that is planned and in host memory, but for `copies=False`: see `take`.

    Attributes:
        directory: the folder that it is written into.
        files: this rank's share.
    """

    directory: Path
    files: ShardedFiles

    @classmethod
    def take(cls, engine: Saved, directory: Path, progress: Mapping[str, Any], *, copies: bool) -> Snapshot:
        """Take the engine's state, for an empty folder. All ranks together, in the training's process groups.

        Args:
            engine: whose state is taken.
            directory: an empty folder, into which common.pt is written at once.
            progress: counters of the training.
            copies: whether the engine may go on to train before the snapshot is written.

        Raises:
            CheckpointError: common.pt cannot be written; only on the first rank.
        """
        try:
            return cls(directory, ShardedFiles.plan(_state(engine, progress), directory, copies=copies))
        except OSError as exc:
            raise _cannot_be_written(directory, _reason(exc)) from exc
        except RuntimeError as exc:
            if not _OF_TORCHS_ARCHIVES.search(str(exc)):
                raise
            raise _cannot_be_written(directory, f"common.pt: {_reason(exc)}") from exc

    def write(self, group: dist.ProcessGroup | None = None) -> None:
        """Write it; all ranks together, each on any thread. It touches neither the device nor the engine.

        Args:
            group: of all ranks, between hosts, that no other thread uses meanwhile; by default the training's own.

        Raises:
            CheckpointError: on every rank, when one cannot write.
        """
        shares = gathered(self._write_share(), group)
        problem = self._finish(shares) if shares is not None else None
        if problem := first_of(problem, group):
            raise _cannot_be_written(self.directory, problem)

    def _write_share(self) -> Share:
        recorder = Recorder()
        try:
            return self.files.write(recorder.open), recorder.files, None
        except Exception as error:  # noqa: BLE001  whatever it is, the other ranks wait for this one's answer
            return [], {}, _reason(error)

    def _finish(self, shares: Sequence[Share]) -> str | None:
        """Write the index and the checksums, which needs the other ranks' files; return what went wrong, or None.

        Digests of the few small files that libraries write are taken by reading them again.
        """
        if problem := next((problem for _, _, problem in shares if problem is not None), None):
            return problem
        try:
            self.files.write_index([results for results, _, _ in shares])
            checksums.write(self.directory, {name: file for _, files, _ in shares for name, file in files.items()})
        except OSError as error:
            return _reason(error)
        return None


def _state(engine: Saved, progress: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that is saved; values that are not sharded are the first rank's, since others read no data."""
    state = {name: part for name, part in engine.state.sharded().items() if part}  # else ranks differ in empty ones
    state |= first_of(
        {
            "format": FORMAT,
            "progress": dict(progress),
            "schedule": engine.schedule.state_dict(),
            "counters": engine.state.counters(),
            "layout": generators.layout(),
            **identity(engine),
        }
    )
    state["rng"] = generators.sharded_states()
    return state


def _cannot_be_written(directory: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{directory} cannot be written: {problem}\nMake room, or let checkpoint.save name another folder."
    )


def _reason(error: BaseException) -> str:
    """Return one line: of the OSError where torch's writer of archives has failed because of one."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    line = (str(cause or error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."
