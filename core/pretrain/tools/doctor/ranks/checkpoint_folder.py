"""Checks the checkpoint folder: writable, shared by all nodes, with space, fast enough."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.atomic_files import existing_folder
from pretrain.data.tokenizers import load_tokenizer
from pretrain.errors import DataError
from pretrain.launch.run_directory import RUNS
from pretrain.stores.address import is_address
from pretrain.tools.doctor.finding import Finding
from pretrain.tools.doctor.ranks.step_sequence import ExaminationStep
from pretrain.tools.plan import run_costs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pretrain.launch.start_checks import Start
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.ranks.status_board import StatusBoard
    from pretrain.tools.doctor.ranks.step_sequence import Answers

_WRITTEN = 64 << 20
_LONG = 120.0  # seconds that a training waits for a checkpoint without complaint
_PATIENCE = 5.0  # seconds that a network file system gets to show what another node has written
_PERIOD = 0.1
_IN_MEMORY = {"tmpfs", "ramfs"}
_MOUNTS = Path("/proc/self/mounts")
_CHECK = "checkpoint folder"
_REMEDIES: Mapping[int | None, str] = {
    errno.ENOSPC: "make space",
    errno.EDQUOT: "make space in this user's quota (`quota -s`)",
    errno.EFBIG: "make space for larger files (`ulimit -f unlimited`)",
    errno.ENOTDIR: "remove the file of that name",
    errno.ENAMETOOLONG: "shorten its name",
    errno.EROFS: "mount it writable",
}


def folder_steps(recipe: Recipe, board: StatusBoard, probe: FolderProbe) -> list[ExaminationStep]:
    """Write into the folder, once a node; look for what the others have written; remove it at once."""

    def write(orders: Any) -> Any:
        probe.run = orders["run"]  # also on ranks that write nothing: one of them may have to remove the files
        return None if board.world.local_rank else probe.write(board.doing)

    def orders_to_look(known: Mapping[str, Answers]) -> Any:
        written = [rank for rank, each in known.get(_CHECK, {}).items() if not each["error"]]
        return written if len(written) > 1 else None  # else there is nothing to share

    def look(written: Any) -> Any:
        if board.world.rank not in written:
            return None
        return probe.unseen(written, board.doing, min(_PATIENCE, board.timeout / 3))

    def remove(_orders: Any) -> None:
        if not board.world.local_rank:
            probe.remove()

    save = recipe.checkpoint.save
    is_folder = save is not False and not is_address(save)  # a store is tried by the checks of a run's start
    return [
        ExaminationStep(
            name=_CHECK,
            orders=lambda _: {"run": secrets.token_hex(4)} if is_folder else None,
            measure=write,
            judge=lambda answers: judge_written(answers, checkpoint_bytes(recipe)),
        ),
        ExaminationStep(name="shared checkpoint folder", orders=orders_to_look, measure=look, judge=judge_seen),
        # What could not be removed could not be written either: there is nothing to judge.
        ExaminationStep(
            name="removal of the doctor's files", orders=lambda known: {} if _CHECK in known else None, measure=remove
        ),
    ]


class FolderProbe:
    """Files of one node's rank in the folder of the checkpoints; nothing is left behind."""

    # The folder need not exist: then the nearest one above it that does is looked at. `run` makes the names of the
    # files of all ranks unlike those of other runs; it is empty while none is written.

    def __init__(self, start: Start, rank: int) -> None:
        save = start.recipe.checkpoint.save
        # The name of a new run's directory is not known before it starts; runs/ is where it will be.
        self._wanted = (Path(save) if isinstance(save, str) else start.run_dir or RUNS).absolute()
        self._rank = rank
        self.run = ""

    @property
    def folder(self) -> Path:
        """The folder, or the nearest one above it that exists."""
        return existing_folder(self._wanted)

    def write(self, doing: Callable[[str], None]) -> dict[str, Any]:
        """Write a small file that the others will look for, then measure how fast a large one reaches the disk."""
        host, wanted = socket.gethostname(), str(self._wanted)
        answer: dict[str, Any] = {"host": host, "folder": wanted, "error": "", "errno": None, "rate": None}
        doing(f"write into {wanted}")
        try:
            folder = self.folder
            answer["folder"] = str(folder)
            self._path(folder, self._rank).write_text(self.run)
            space = os.statvfs(folder)
            answer["free"] = space.f_bavail * space.f_frsize
            answer["in_memory"] = kind_of_file_system(folder) in _IN_MEMORY
            answer["rate"] = _write_speed(folder, _WRITTEN)
        except OSError as error:
            answer |= {"error": error.strerror or str(error), "errno": error.errno}
        return answer

    def unseen(self, ranks: Iterable[int], doing: Callable[[str], None], patience: float) -> dict[str, Any]:
        """Return those of the ranks whose files cannot be read here within `patience` seconds."""
        doing(f"look in {self._wanted} for what other nodes have written")
        folder = self.folder
        missing = [rank for rank in ranks if rank != self._rank]
        deadline = time.monotonic() + patience
        while missing := [rank for rank in missing if not self._is_there(folder, rank)]:
            if time.monotonic() > deadline:
                break
            time.sleep(_PERIOD)  # a network file system may show a new file a moment later
        return {"host": socket.gethostname(), "folder": str(folder), "unseen": missing}

    def remove(self) -> None:
        """Remove the small files of this run, also those of ranks that are stopped or have died."""
        if not self.run:
            return
        with suppress(OSError):
            for path in self.folder.glob(f".pretrain-doctor-{self.run}-*"):
                path.unlink(missing_ok=True)

    def _is_there(self, folder: Path, rank: int) -> bool:
        try:
            return self._path(folder, rank).read_text() == self.run
        except OSError:
            return False

    def _path(self, folder: Path, rank: int) -> Path:
        return folder / f".pretrain-doctor-{self.run}-{rank}"


def judge_written(answers: Mapping[int, Mapping[str, Any]], needed: int | None) -> list[Finding]:
    """Judge what `FolderProbe.write` returned on each node; `needed` are a checkpoint's bytes, None if unknown."""
    found = []
    for rank, each in answers.items():
        if each["error"]:
            text = f"rank {rank} (host {each['host']}) cannot write into {each['folder']}: {each['error']}"
            remedy = _REMEDIES.get(each.get("errno"), "make it writable for this user")
            found.append(Finding.wrong(_CHECK, text, f"{remedy}, or name another folder: checkpoint.save", [rank]))
    whole = {rank: each for rank, each in answers.items() if not each["error"]}
    if not whole:
        return found
    return [*found, _judge_space(whole, needed), *_judge_memory(whole), _judge_speed(whole, needed)]


def judge_seen(answers: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """Judge what `FolderProbe.unseen` returned on each node."""
    blind = {rank: each for rank, each in answers.items() if each["unseen"]}
    if not blind:
        folder = answers[min(answers)]["folder"]
        return [Finding.ok(_CHECK, f"{folder} is shared by {len(answers)} nodes")]
    rank, each = next(iter(blind.items()))
    other = each["unseen"][0]
    wrote = " wrote"
    if other in answers:
        wrote = f" (host {answers[other]['host']}) wrote into {answers[other]['folder']}"
    text = f"not shared: rank {rank} (host {each['host']}) does not see in {each['folder']} what rank {other}{wrote}"
    remedy = "set checkpoint.save (or --run-dir) to a folder that all nodes share"
    return [Finding.wrong(_CHECK, text, remedy, sorted(blind))]


def _judge_space(answers: Mapping[int, Mapping[str, Any]], needed: int | None) -> Finding:
    rank = min(answers, key=lambda each: answers[each]["free"])
    free, folder = answers[rank]["free"], answers[rank]["folder"]
    if needed is None:
        text = f"{_gb(free)} free in {folder}; the size of a checkpoint is unknown without the tokenizer"
        return Finding.look(_CHECK, text, "provide the recipe's tokenizer")
    text = f"{_gb(free)} free in {folder}; two checkpoints of this recipe need {_gb(2 * needed)}"
    if free >= 2 * needed:
        return Finding.ok(_CHECK, text)
    remedy = (
        f"free {_gb(2 * needed - free)}, or name another folder (checkpoint.save): an old checkpoint is removed only "
        "when the next one is complete"
    )
    return Finding.wrong(_CHECK, text, remedy, [rank])


def _judge_memory(answers: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    ranks = [rank for rank, each in answers.items() if each["in_memory"]]
    if not ranks:
        return []
    text = f"{answers[ranks[0]]['folder']} is in memory: checkpoints are lost when the machine or container restarts"
    return [Finding.look(_CHECK, text, "name a folder on a disk: checkpoint.save (or --run-dir)", ranks)]


def _judge_speed(answers: Mapping[int, Mapping[str, Any]], needed: int | None) -> Finding:
    rank = min(answers, key=lambda each: answers[each]["rate"])
    rate = answers[rank]["rate"]
    where = f" (slowest of {len(answers)} nodes, all at once: {answers[rank]['host']})" if len(answers) > 1 else ""
    text = f"{rate / 1e6:,.0f} MB/s are written to the disk{where}"
    seconds = 0.0 if needed is None else needed / rate / len(answers)
    if needed is not None:
        text += f": a checkpoint of {_gb(needed)} takes about {max(1, round(seconds)):,} s"
    if seconds <= _LONG:
        return Finding.ok(_CHECK, text)
    remedy = "choose a faster folder (checkpoint.save), save less often, or in the background (checkpoint.async_save)"
    return Finding.look(_CHECK, text, remedy)


def kind_of_file_system(folder: Path) -> str:
    """Return the file system's type of a folder ("ext4"); "" if it is unknown."""
    kinds = {}
    with suppress(OSError):
        for line in _MOUNTS.read_text().splitlines():
            _, place, kind, *_ = line.split(" ")
            kinds[Path(place.encode().decode("unicode_escape"))] = kind
    around = (folder.resolve(), *folder.resolve().parents)
    return next((kinds[each] for each in around if each in kinds), "")


def _write_speed(folder: Path, size: int) -> float:
    """Return the bytes/s at which a file is written to the disk; it has no name, and vanishes with this process."""
    path = folder / f".pretrain-doctor-speed-{socket.gethostname()}-{os.getpid()}"
    chunk = os.urandom(min(size, 1 << 22))  # zeros would be compressed by some file systems
    with path.open("xb", buffering=0) as stream:
        path.unlink()
        begun, left = time.perf_counter(), size
        while left > 0:
            left -= stream.write(chunk[: min(left, len(chunk))])
        os.fsync(stream.fileno())
        return size / (time.perf_counter() - begun)


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"


def checkpoint_bytes(recipe: Recipe) -> int | None:
    """Return the bytes of a checkpoint, as `pretrain plan` counts them."""
    # None where the tokenizer cannot be read, by whose size the embedding has its rows.
    try:
        # Before a run has trained its tokenizer, the recipe says how many tokens it will have.
        tokens = recipe.tokenizer.vocab_size or load_tokenizer(recipe.tokenizer).vocab_size
    except DataError:
        return None
    return run_costs.checkpoint_bytes(recipe, tokens)
