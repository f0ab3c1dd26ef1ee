"""A folder of checkpoints, `iter_0000500/` and so on, with `latest_checkpointed_iteration.txt`; its owner.

The owner is the one run that may save there; its identity is in `.run_id` of its directory, and in `owner.json` here.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.atomic_files import replacing
from pretrain.checkpoint.checksums import digest_of
from pretrain.errors import CheckpointError, DamageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pretrain.recipe import Recipe

FORMAT = 3  # a new one when older readers would misread it
WITHOUT_CHECKSUMS = 2  # the format of before checksums, which is read too
LATEST = "latest_checkpointed_iteration.txt"
_UNFINISHED = ".unfinished-"
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

    @classmethod
    def of(cls, recipe: Recipe, run_dir: Path) -> CheckpointFolder:
        """Return the folder of a run: RUN/checkpoints, or the one that `checkpoint.save` names."""
        save = recipe.checkpoint.save
        return cls(Path(save) if isinstance(save, str) else run_dir / "checkpoints", recipe.checkpoint.keep)

    def save(
        self, iteration: int, write: Callable[[Path], None], *, is_main: bool, barrier: Callable[[], None]
    ) -> Path:
        """Have `write` fill an empty folder, and publish it; all ranks together, `is_main` makes the folders."""
        unfinished = self.begin(iteration, is_main=is_main, barrier=barrier)
        with self.written():
            write(unfinished)
        barrier()
        if is_main:
            self.publish(iteration)
        barrier()
        return self.directory(iteration)

    def begin(self, iteration: int, *, is_main: bool, barrier: Callable[[], None]) -> Path:
        """Return an empty folder to write a checkpoint into; all ranks call it together."""
        unfinished = self._unfinished(iteration)
        if is_main:
            with self.written():
                self._remove_unfinished()
                unfinished.mkdir(parents=True)
        barrier()
        return unfinished

    def publish(self, iteration: int) -> None:
        """Flush and rename a written checkpoint, name it in LATEST, and remove older ones; one rank, any thread."""
        unfinished, final = self._unfinished(iteration), self.directory(iteration)
        with self.written():
            flush_to_disk(*unfinished.iterdir(), unfinished)
            if final.exists():  # the run was started again from an older checkpoint
                final.rename(self.path / f"{_UNFINISHED}replaced-{iteration:07d}")
            unfinished.rename(final)
            with replacing(self.path / LATEST, error=None) as stream:
                stream.write(tracked(str(iteration)).encode())
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
        with replacing(self.path / LATEST, error=CheckpointError) as stream:
            stream.write(f"{reason[:_LONGEST]}\n".encode())

    def require_writable(self) -> None:
        """Make the folder, so that a mistake is found before the training and not at its first checkpoint."""
        probe = self.path / f"{_UNFINISHED}probe"
        with self.written():
            probe.mkdir(parents=True, exist_ok=True)
            probe.rmdir()

    def latest(self) -> int | None:
        """Return the iteration of the latest complete checkpoint, None without one; an error for a bad LATEST."""
        tracker = self.path / LATEST
        if not tracker.is_file():
            return None
        text = tracker.read_text(errors="replace")
        number = text.split("\n", 1)[0] if text == tracked(text.split("\n", 1)[0]) else text.strip()
        if len(number) > _LONGEST:
            msg = f"{tracker} is damaged: it does not match its own checksum."
            raise DamageError(msg)
        if not (number.isascii() and number.isdecimal()):
            msg = f"{tracker} holds {number!r}, not an iteration.\n{self._choice()}"
            raise CheckpointError(msg)
        if not self.directory(int(number)).is_dir():
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
        return self.path / f"{_UNFINISHED}{iteration:07d}"

    def _remove_older(self, iteration: int) -> None:
        if self.keep is not None:
            # Later ones stay: after a start from an older checkpoint they belong to the abandoned part.
            for old in [number for number in self.iterations() if number < iteration][: -self.keep + 1 or None]:
                self.directory(old).rename(self.path / f"{_UNFINISHED}old-{old:07d}")

    def _remove_unfinished(self) -> None:
        for left in self.path.glob(f"{_UNFINISHED}*"):
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


ID = ".run_id"
OWNER = "owner.json"


def require_own(recipe: Recipe, run_dir: Path | None, *, resume: bool) -> None:
    """Check that the run may save into its recipe's folder: it is empty, its own, or the one that it continues."""
    checkpoint = recipe.checkpoint
    folder = _saves_into(recipe, run_dir)
    if folder is None or (run_dir is not None and folder.path.absolute().parent == run_dir.absolute()):
        return  # not saved at all, or inside the run's own directory, which may be a copy
    owner = _owner(folder.path)
    if not owner and not folder.iterations() and not (folder.path / LATEST).exists():
        return
    if owner and run_dir is not None and owner.get("run") == _identity(run_dir):
        return
    if not owner and resume:  # a run of a version whose folders had no owner
        return
    goes_on = checkpoint.load is not None and Path(checkpoint.load).resolve() == folder.path.resolve()
    if goes_on and not checkpoint.finetune:
        return
    whose = f" ({owner['run_dir']})" if owner.get("run_dir") else ""
    there = ", ".join(map(str, folder.iterations())) or "none yet"
    msg = (
        f"checkpoint.save: {folder.path} has the checkpoints of another run{whose}: {there}.\n"
        f"Name another folder; or continue them: set checkpoint.load={folder.path} as well, or --resume that run."
    )
    raise CheckpointError(msg)


def claim(recipe: Recipe, run_dir: Path, *, resume: bool) -> None:
    """Write the run into the folder that it saves into; called by one rank, before the first save."""
    folder = _saves_into(recipe, run_dir)
    if folder is None:
        return
    require_own(recipe, run_dir, resume=resume)
    folder.require_writable()
    identity = _identity(run_dir) or uuid.uuid4().hex
    owner = {"run": identity, "run_dir": str(run_dir.absolute())}
    with folder.written():
        for path, text in ((run_dir / ID, identity), (folder.path / OWNER, json.dumps(owner))):
            with replacing(path, error=None) as stream:
                stream.write(f"{text}\n".encode())


def _saves_into(recipe: Recipe, run_dir: Path | None) -> CheckpointFolder | None:
    """Return the folder that the run saves into; None if it saves nothing, or into a directory that does not exist."""
    save = recipe.checkpoint.save
    if save is False or (save is True and run_dir is None):
        return None
    return CheckpointFolder.of(recipe, run_dir or Path())


def _identity(run_dir: Path) -> str | None:
    with suppress(OSError):
        return (run_dir / ID).read_text().strip() or None
    return None


def _owner(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        owner = json.loads((folder / OWNER).read_text())
        if isinstance(owner, dict):
            return owner
    return {}
