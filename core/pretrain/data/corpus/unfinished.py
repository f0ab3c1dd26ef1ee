"""A build that is not finished yet: a folder beside the files it will become, from which it can be continued.

The folder PREFIX.partial holds what is written so far and `state.json`, which says how much of it counts and where
reading goes on. The state is written after the data it speaks of is on the disk, and replaced at once, so after a
crash at any moment the files are cut back to what it says.
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
from pretrain.data.corpus.chunks import START, Place
from pretrain.data.token_files.writing import NOTHING, Written
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

STATE = "state.json"
INDEX = "index"
TOKENS = "tokens"
FILES = (TOKENS, "lengths", "document_ends", "digests")
SAVED_EVERY = 5.0
"""Seconds; so much work is done again after a crash."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What was left out and what was compared, from the beginning of the build, however often it was interrupted.

    Attributes:
        faults: what is no document.
        first_fault: the first of them.
        short: documents that cleaning left out because they are short.
        duplicates: and because they had come before.
        compared: texts of which the reference tokenizer gave the same tokens.
        texts: of how many that was: all that another tokenizer encoded, empty ones left out.
    """

    faults: int = 0
    first_fault: str | None = None
    short: int = 0
    duplicates: int = 0
    compared: int = 0
    texts: int = 0


NOTHING_COUNTED = Counts()


@dataclass(frozen=True, slots=True)
class State:
    """How far a build has come.

    Attributes:
        settings: what the bytes depend on, by name; a build with others cannot be continued.
        place: where reading goes on.
        written: what is written.
        sizes: bytes of each file that count.
        counts: what was left out and compared.
        finished: everything is written; the files need only take their names.
    """

    settings: dict[str, str]
    place: Place = START
    written: Written = NOTHING
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FILES, 0))
    counts: Counts = NOTHING_COUNTED
    finished: bool = False

    def to_json(self) -> bytes:
        """Return what `from_json` reads."""
        return json.dumps(asdict(self), indent=1).encode()

    @staticmethod
    def from_json(content: bytes) -> State:
        """Read a state; raises ValueError, KeyError or TypeError if it is none."""
        entry: dict[str, Any] = json.loads(content)
        return State(
            dict(entry["settings"]),
            Place(*map(int, entry["place"])),
            Written(*map(int, entry["written"])),
            {name: int(entry["sizes"][name]) for name in FILES},
            Counts(**entry["counts"]),
            bool(entry["finished"]),
        )


class Unfinished:
    """The files of a build in work, and its state.

    Attributes:
        folder: where they are.
        state: the last one that was saved, or the beginning; whoever writes keeps it true.
        files: open for writing: tokens, lengths, document_ends, digests; none if it is finished.
    """

    def __init__(self, folder: Path, state: State, files: dict[str, IO[bytes]]) -> None:
        self.folder = folder
        self.state = state
        self.files = files
        self._saved = time.monotonic()
        self._lost = False

    def save(self, *, now: bool = True) -> None:
        """Write the state; unless `now`, only if the last time is some seconds ago.

        Raises:
            DataError: the disk is full, or the files cannot be written for another reason.
        """
        if (now or time.monotonic() - self._saved >= SAVED_EVERY) and not self._lost:
            with self.writing():
                self._sync()
                with replacing(self.folder / STATE) as stream:
                    stream.write(self.state.to_json())
            self._saved = time.monotonic()

    def _sync(self) -> None:
        """Let the files reach the disk. When that fails what they hold is lost, and the next fsync does not say so."""
        try:
            for file in self.files.values():
                os.fsync(file.fileno())
        except OSError:
            self._lost = True
            raise

    def read(self, name: str, dtype: str) -> npt.NDArray[Any]:
        """Map one of the files into memory."""
        path = self.folder / name
        return np.memmap(path, dtype, "r") if path.stat().st_size else np.zeros(0, dtype)

    def read_bytes(self, name: str) -> bytes:
        """Return one of the files."""
        return (self.folder / name).read_bytes()

    def discard(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Tell of a failure to write.

        Raises:
            DataError: the disk is full, or the files cannot be written for another reason.
        """
        try:
            yield
        except (OSError, DataError) as exc:
            cause = exc if isinstance(exc, OSError) else exc.__cause__
            if not isinstance(cause, OSError):
                raise
            said = f"{self.folder} cannot be written: {cause.strerror or cause}." if cause is exc else str(exc)
            msg = f"{said}\nWhat is written stays. Make room, and give the same command: it continues."
            raise DataError(msg) from cause


@contextmanager
def unfinished(prefix: Path, settings: dict[str, str], *, force: bool) -> Iterator[Unfinished]:
    """Open the folder of a build, a new one or one that was interrupted.

    If the block raises, what is written stays to be continued; the folder goes if that is nothing.

    Args:
        prefix: path without .bin and .idx.
        settings: what the bytes depend on, by name.
        force: discard a build with other settings.

    Raises:
        DataError: another process is at it, an interrupted build has other settings, or a file cannot be written.
    """
    folder = folder_of(prefix)
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _lock(folder, stack)
            state = _state(folder, settings, force=force)
            files: dict[str, IO[bytes]] = {}
            for name, size in () if state.finished else state.sizes.items():
                files[name] = stack.enter_context((folder / name).open("ab", buffering=0))
                _cut(files[name], size, folder / name)
        except OSError as exc:
            msg = f"{folder} cannot be written: {exc.strerror or exc}."
            raise DataError(msg) from exc
        work = Unfinished(folder, state, files)
        try:
            yield work
        except BaseException:
            _keep(work)
            raise


def _keep(work: Unfinished) -> None:
    if not work.state.written.tokens:
        work.discard()
    elif (work.folder / TOKENS).exists():
        with suppress(DataError):  # the disk may be full; an older state is as good
            work.save()


def _lock(folder: Path, stack: ExitStack) -> None:
    """Hold the folder; the system lets it go when the process ends, however that happens."""
    stream = stack.enter_context((folder / "lock").open("wb"))
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        msg = f"another process is at work in {folder}.\nLet it finish, or give another --output-prefix."
        raise DataError(msg) from exc


def _state(folder: Path, settings: dict[str, str], *, force: bool) -> State:
    try:
        state = State.from_json((folder / STATE).read_bytes())
    except FileNotFoundError:
        return State(settings)
    except (ValueError, KeyError, TypeError) as exc:
        if force:
            return State(settings)
        msg = f"{folder / STATE} is damaged: {exc}.\nPass --force to build from the beginning."
        raise DataError(msg) from exc
    other = [name for name in settings if settings[name] != state.settings.get(name)]
    if other and not force:
        msg = (
            f"{folder} holds an interrupted build that differs in: {', '.join(other)}.\n"
            "Give its command to continue it, or pass --force to build from the beginning."
        )
        raise DataError(msg)
    # Without its index it has taken its names already; only the folder was left.
    stale = other or (state.finished and not (folder / INDEX).exists())
    return State(settings) if stale else state


def _cut(file: IO[bytes], size: int, path: Path) -> None:
    """Cut a file to the size that counts."""
    found = os.fstat(file.fileno()).st_size
    if found < size:
        msg = f"{path} is truncated: {found} bytes, {STATE} beside it says {size}.\nRemove {path.parent} to begin anew."
        raise DataError(msg)
    file.truncate(size)


def folder_of(prefix: Path) -> Path:
    """Return the folder of the unfinished build of `prefix`."""
    return Path(f"{prefix}.partial")


def is_finished(prefix: Path) -> bool:
    """Return whether only names are missing: the build ended, and was stopped while its files took their places."""
    folder = folder_of(prefix)
    try:
        return State.from_json((folder / STATE).read_bytes()).finished and (folder / INDEX).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False
