"""Unfinished builds: a folder beside the files to be made, from which an interrupted build continues.

The folder PREFIX.partial holds the data written so far and `state.json` with the valid size of each file and the
position from which reading continues. The state is replaced atomically, after the data it describes is on the disk.
So after a crash at any moment the files are truncated to the sizes in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from pretrain.atomic_files import replacing
from pretrain.data.token_files.writing import NOTHING, Written
from pretrain.errors import DataError
from pretrain.tools.corpus.chunks import START, ReadPosition

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

STATE = "state.json"
INDEX = "index"
TOKENS = "tokens"
FILES = (TOKENS, "lengths", "document_ends", "digests")
SAVED_EVERY = 5.0  # seconds between two saved states: the work that is repeated after a crash


@dataclass(frozen=True, slots=True)
class BuildCounts:
    """Documents left out and texts compared since the beginning of the build, interruptions included."""

    faults: int = 0  # malformed documents
    first_fault: str | None = None
    short: int = 0
    duplicates: int = 0
    compared: int = 0  # texts for which the reference tokenizer gave the same tokens
    texts: int = 0  # all non-empty texts that another tokenizer encoded


@dataclass(frozen=True, slots=True)
class BuildState:
    """State of a build."""

    settings: dict[str, str]  # everything that the output bytes depend on; a build with others cannot be continued
    place: ReadPosition = START  # from which reading continues
    written: Written = NOTHING
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FILES, 0))  # valid bytes of each file
    counts: BuildCounts = BuildCounts()
    finished: bool = False  # everything is written, and the files only have to be moved to their names

    @staticmethod
    def from_json(content: bytes) -> BuildState:
        """Read a state; raises ValueError, KeyError or TypeError if it is malformed."""
        entry: dict[str, Any] = json.loads(content)
        return BuildState(
            dict(entry["settings"]),
            ReadPosition(*map(int, entry["place"])),
            Written(*map(int, entry["written"])),
            {name: int(entry["sizes"][name]) for name in FILES},
            BuildCounts(**entry["counts"]),
            bool(entry["finished"]),
        )


class Unfinished:
    """Files and state of an unfinished build; the code that writes the files, which are `FILES`, updates the state."""

    def __init__(self, folder: Path, state: BuildState, files: dict[str, IO[bytes]]) -> None:
        self.folder, self.state, self.files = folder, state, files
        self._saved = time.monotonic()
        self._lost = False

    def save(self, *, now: bool = True) -> None:
        """Write the state; unless `now`, only if `SAVED_EVERY` seconds have passed since the last time."""
        if (now or time.monotonic() - self._saved >= SAVED_EVERY) and not self._lost:
            with self.writing():
                try:
                    for file in self.files.values():
                        os.fsync(file.fileno())
                except OSError:
                    self._lost = True  # the content of the files, and the next fsync would not report that
                    raise
                with replacing(self.folder / STATE) as stream:
                    stream.write(json.dumps(asdict(self.state), indent=1).encode())
            self._saved = time.monotonic()

    def read(self, name: str, dtype: str) -> npt.NDArray[Any]:
        """Map one of the files into memory."""
        path = self.folder / name
        return np.memmap(path, dtype, "r") if path.stat().st_size else np.zeros(0, dtype)

    def discard(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raise a failure to write as DataError."""
        try:
            yield
        except (OSError, DataError) as exc:
            cause = exc if isinstance(exc, OSError) else exc.__cause__
            if not isinstance(cause, OSError):
                raise
            reason = f"{self.folder} cannot be written: {cause.strerror or cause}." if cause is exc else str(exc)
            msg = f"{reason}\nThe data written so far is kept. Free disk space, then repeat the command to continue."
            raise DataError(msg) from cause


@contextmanager
def unfinished(prefix: Path, settings: dict[str, str], *, force: bool) -> Iterator[Unfinished]:
    """Open the folder of a new or an interrupted build; if the block raises, the data written so far is kept."""
    folder = folder_of(prefix)
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _lock(folder, stack)
            state = _state(folder, settings, force=force)
            files: dict[str, IO[bytes]] = {}
            for name, size in () if state.finished else state.sizes.items():
                file = stack.enter_context((folder / name).open("ab", buffering=0))
                found = os.fstat(file.fileno()).st_size
                if found < size:
                    what = f"is truncated: {found} bytes, but {size} by {STATE} beside it"
                    msg = f"{folder / name} {what}.\nRemove {folder} to start again."
                    raise DataError(msg)
                file.truncate(size)
                files[name] = file
        except OSError as exc:
            msg = f"{folder} cannot be written: {exc.strerror or exc}."
            raise DataError(msg) from exc
        work = Unfinished(folder, state, files)
        try:
            yield work
        except BaseException:
            if not work.state.written.tokens:
                work.discard()
            elif (folder / TOKENS).exists():
                with suppress(DataError):  # the disk may be full; an older state is valid too
                    work.save()
            raise


def _lock(folder: Path, stack: ExitStack) -> None:
    stream = stack.enter_context((folder / "lock").open("wb"))
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        msg = f"another process is building in {folder}.\nWait for it, or give another --output-prefix."
        raise DataError(msg) from exc


def _state(folder: Path, settings: dict[str, str], *, force: bool) -> BuildState:
    try:
        state = BuildState.from_json((folder / STATE).read_bytes())
    except FileNotFoundError:
        return BuildState(settings)
    except (ValueError, KeyError, TypeError) as exc:
        if force:
            return BuildState(settings)
        msg = f"{folder / STATE} is damaged: {exc}.\nPass --force to build from the beginning."
        raise DataError(msg) from exc
    other = [name for name in settings if settings[name] != state.settings.get(name)]
    if other and not force:
        msg = f"{folder} holds an interrupted build that differs in: {', '.join(other)}.\n"
        msg += "Repeat its command to continue it, or pass --force to build from the beginning."
        raise DataError(msg)
    # Finished without an index: its files were moved already, and only the folder was left.
    stale = other or (state.finished and not (folder / INDEX).exists())
    return BuildState(settings) if stale else state


def folder_of(prefix: Path) -> Path:
    """Return the folder of the unfinished build of `prefix`."""
    return Path(f"{prefix}.partial")


def is_finished(prefix: Path) -> bool:
    """Return whether only names are missing: the build was complete, and stopped while its files were moved."""
    folder = folder_of(prefix)
    try:
        return BuildState.from_json((folder / STATE).read_bytes()).finished and (folder / INDEX).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False
