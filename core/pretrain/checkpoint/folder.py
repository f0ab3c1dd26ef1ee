"""A folder of checkpoints: `iter_0000500/` and so on, with `latest_checkpointed_iteration.txt`."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.atomic_files import replacing
from pretrain.checkpoint.checksums import digest_of
from pretrain.errors import CheckpointError, DamageError
from pretrain.stores.address import is_address
from pretrain.stores.local_copies import shown_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FORMAT = 3  # a new one when older readers would misread it
WITHOUT_CHECKSUMS = 2  # the format of before checksums, which is read too
LATEST = "latest_checkpointed_iteration.txt"
OWNER = "owner.json"  # the run that may save there: see `owner`
UNFINISHED = ".unfinished-"
_LONGEST = 32  # longest user-written content of LATEST, in characters; with our second line it has more


def folder_name(iteration: int) -> str:
    """Return the name of the folder of an iteration, as Megatron-LM's."""
    return f"iter_{iteration:07d}"


def iteration_of(name: str) -> int | None:
    """Return the iteration that the name of a folder says; None if it is not such a name."""
    number = name.removeprefix("iter_")
    return int(number) if number != name and number.isascii() and number.isdecimal() else None


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """Folder of a run's checkpoints; a crash at any moment leaves the previous one usable.

    A checkpoint is written under another name and renamed when it is complete; only then does LATEST name it, and only
    then are older ones removed. A folder is renamed before its removal, so that every iter_* folder is complete.
    """

    path: Path
    keep: int | None = None  # number of checkpoints up to the latest that are kept; None: all

    @property
    def is_local(self) -> bool:
        """Whether the checkpoints are in a folder of this machine."""
        return True

    @property
    def place(self) -> str:
        """Where the checkpoints are, for a user: a path, or an address."""
        return shown_place(self.path)

    def named(self, iteration: int) -> str:
        """Return where one checkpoint is, for a user."""
        return f"{self.place}/{folder_name(iteration)}"

    def is_at(self, given: str) -> bool:
        """Say whether a path or an address of a recipe is this folder."""
        return not is_address(given) and Path(given).resolve() == self.path.resolve()

    def is_inside(self, run_dir: Path) -> bool:
        """Say whether it is a folder of a run's directory."""
        return self.path.absolute().parent == run_dir.absolute()

    def save(self, iteration: int, write: Callable[[Path], None], *, is_main: bool, barrier: Callable[[], None]) -> str:
        """Have `write` fill an empty folder, and publish it; all ranks together, `is_main` makes the folders."""
        unfinished = self.begin(iteration, is_main=is_main, barrier=barrier)
        with self.written():
            write(unfinished)
        barrier()
        if is_main:
            self.publish(iteration)
        barrier()
        return self.named(iteration)

    def begin(self, iteration: int, *, is_main: bool, barrier: Callable[[], None]) -> Path:
        """Return an empty folder to write a checkpoint into; all ranks call it together."""
        unfinished = self._unfinished(iteration)
        if is_main:
            with self.written():
                self._remove_unfinished()
                unfinished.mkdir(parents=True)
        barrier()
        return unfinished

    def send(self, file: Path) -> None:
        """Take a file that is complete in the folder which `begin` returned; here it stays where it is."""

    @contextmanager
    def opened(self, iteration: int) -> Iterator[Path]:
        """Give the folder of one checkpoint, to be read in the block; all ranks together."""
        yield self.directory(iteration)

    def publish(self, iteration: int) -> None:
        """Flush and rename a written checkpoint, name it in LATEST, and remove older ones; one rank, any thread."""
        unfinished, final = self._unfinished(iteration), self.directory(iteration)
        with self.written():
            flush_to_disk(*unfinished.iterdir(), unfinished)
            if final.exists():  # the run was started again from an older checkpoint
                final.rename(self.path / f"{UNFINISHED}replaced-{iteration:07d}")
            unfinished.rename(final)
            self.write(LATEST, tracked(str(iteration)).encode())
            # Only the folder itself: opening and closing the run's lock in it (launch/run_lock.py) would release it.
            flush_to_disk(self.path)
            self._remove_older(iteration)
            self._remove_unfinished()

    @contextmanager
    def written(self) -> Iterator[None]:
        """Turn an OSError of a block that writes the folder into a CheckpointError."""
        try:
            yield
        except OSError as error:
            is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            todo = "Free disk space, or set" if is_full else "Set"
            msg = f"{self.path} cannot be written: {error}\n{todo} checkpoint.save to another folder."
            raise CheckpointError(msg) from error

    def name_none(self, reason: str) -> None:
        """Have LATEST name no checkpoint, so that no run continues by itself; `latest` raises its reason."""
        with self.written():
            self.write(LATEST, f"{reason[:_LONGEST]}\n".encode())

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file beside the checkpoints; None: it is not there."""
        path = self.path / name
        return path.read_bytes() if path.is_file() else None

    def write(self, name: str, content: bytes) -> None:
        """Write a small file beside the checkpoints, which appears whole or not at all."""
        with replacing(self.path / name, error=None) as stream:
            stream.write(content)

    def has(self, iteration: int) -> bool:
        """Say whether a checkpoint is complete here."""
        return self.directory(iteration).is_dir()

    def require_writable(self) -> None:
        """Make the folder, so that a mistake is found before the training and not at its first checkpoint."""
        probe = self.path / f"{UNFINISHED}probe"
        with self.written():
            probe.mkdir(parents=True, exist_ok=True)
            probe.rmdir()

    def latest(self) -> int | None:
        """Return the iteration of the latest complete checkpoint, None without one; an error for a bad LATEST."""
        tracker, content = f"{self.place}/{LATEST}", self.read(LATEST)
        if content is None:
            return None
        text = content.decode(errors="replace")
        number = text.split("\n", 1)[0] if text == tracked(text.split("\n", 1)[0]) else text.strip()
        if len(number) > _LONGEST:
            msg = f"{tracker} is damaged: it does not match its own checksum."
            raise DamageError(msg)
        if not (number.isascii() and number.isdecimal()):
            msg = f"{tracker} holds {number!r}, not an iteration.\n{self._choice()}"
            raise CheckpointError(msg)
        if not self.has(int(number)):
            msg = f"{tracker} names iteration {number}, whose folder is missing.\n{self._choice()}"
            raise CheckpointError(msg)
        return int(number)

    def directory(self, iteration: int) -> Path:
        """Return the folder of one checkpoint."""
        return self.path / folder_name(iteration)

    def iterations(self) -> list[int]:
        """Return the iterations of all checkpoints, ascending."""
        found = (iteration_of(entry.name) for entry in self.path.glob("iter_*") if entry.is_dir())
        return sorted(iteration for iteration in found if iteration is not None)

    def _unfinished(self, iteration: int) -> Path:
        return self.path / f"{UNFINISHED}{iteration:07d}"

    def _remove_older(self, iteration: int) -> None:
        if self.keep is not None:
            # Later ones stay: after a start from an older checkpoint they belong to the abandoned part.
            for old in [number for number in self.iterations() if number < iteration][: -self.keep + 1 or None]:
                self.directory(old).rename(self.path / f"{UNFINISHED}old-{old:07d}")

    def _remove_unfinished(self) -> None:
        for left in self.path.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left)
        for left in self.path.glob(f".{LATEST}.*"):  # left by a killed process
            left.unlink()

    def _choice(self) -> str:
        if there := self.iterations():
            return f"Write one of these iterations into it: {', '.join(map(str, there))}."
        return "The folder holds no checkpoint (iter_*); name another."


def tracked(number: str) -> str:
    """Return the content of LATEST: the iteration, as Megatron-LM writes it, and a line that reveals damage.

    The line may be missing: a user chooses another checkpoint by writing its number alone.
    """
    line = f"{number}\n"
    return f"{line}xxh3 {digest_of(line.encode())}\n"


def flush_to_disk(*paths: Path) -> None:
    """Flush files and folders to the disk before anything relies on them."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
