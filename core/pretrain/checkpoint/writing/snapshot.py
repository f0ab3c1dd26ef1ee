"""State of an engine at one iteration, complete in host memory, that is written at once or later."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.checkpoint import checksums, generators
from pretrain.checkpoint.digest import FileDigest, Recorder
from pretrain.checkpoint.folder import FORMAT
from pretrain.checkpoint.identity import identity
from pretrain.checkpoint.writing.agreement import first_of, gathered
from pretrain.checkpoint.writing.sharded_files import Results, ShardedFiles
from pretrain.errors import CheckpointError, OtherRankError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch.distributed as dist

    from pretrain.checkpoint.contents import Saved

_OF_TORCHS_ARCHIVES = re.compile("iostream error|inline_container|PytorchStreamWriter")
"""Errors of torch.save by a path, which does not say what the system answered."""

_LONGEST = 200  # longest part of an error's message that is shown, in characters

Share = tuple[Results, dict[str, FileDigest], str | None]
"""Written tensors of a rank, digests of its files, and the message for all ranks if something went wrong."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checkpoint that is planned and in host memory, but for `copies=False`: see `take`."""

    directory: Path
    files: ShardedFiles

    @classmethod
    def take(cls, engine: Saved, directory: Path, progress: Mapping[str, Any], *, copies: bool) -> Snapshot:
        """Take the engine's state for an empty folder; with `copies` it may train before the write. Collective."""
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

        No other thread may use `group` meanwhile. If one rank cannot write, every rank raises a CheckpointError.
        """
        failed: Exception | None = None
        recorder = Recorder()
        share: Share = [], recorder.files, None
        try:
            share = self.files.write(recorder.open), recorder.files, None
        except Exception as error:  # noqa: BLE001  whatever it is, the other ranks wait for this one's answer
            failed = error
            share = [], {}, str(_told(self.directory, error))
        shares = gathered(share, group)
        problem: str | None = None
        if shares is not None and (problem := next((problem for *_, problem in shares if problem), None)) is None:
            try:
                self.files.write_index([results for results, _, _ in shares])
                # The few small files that libraries write are read again for their digests.
                checksums.write(self.directory, {name: file for _, files, _ in shares for name, file in files.items()})
            except Exception as error:  # noqa: BLE001  the same
                failed = error
                problem = str(_told(self.directory, error))
        if problem := first_of(problem, group):
            if failed is not None and not _is_of_disk(failed):
                raise failed
            raise (OtherRankError if failed is None else CheckpointError)(problem) from failed


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
            **identity(engine.recipe, engine.vocab_size),
        }
    )
    state["rng"] = generators.sharded_states()
    return state


def _cannot_be_written(directory: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{directory} cannot be written: {problem}\nMake room, or let checkpoint.save name another folder."
    )


def _told(directory: Path, error: Exception) -> CheckpointError:
    if _is_of_disk(error):
        return _cannot_be_written(directory, _reason(error))
    return CheckpointError(
        f"{directory} is not complete: a rank has failed with {type(error).__name__}: {_reason(error)}\n"
        "Its own log has the traceback."
    )


def _is_of_disk(error: BaseException) -> bool:
    """Say whether writing has failed, rather than the program."""
    return isinstance(_cause(error), OSError) or _OF_TORCHS_ARCHIVES.search(str(error)) is not None


def _reason(error: BaseException) -> str:
    """Return one line: of the OSError where torch's writer of archives has failed because of one."""
    cause = _cause(error)
    line = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


def _cause(error: BaseException) -> BaseException:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause or error
