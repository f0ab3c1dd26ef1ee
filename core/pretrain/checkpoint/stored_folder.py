"""A run's checkpoints in an object store, and this node's copies of stored checkpoints.

Ranks write their files into the run directory as always; each file goes to the store as soon as it is complete, and is
removed here. The first rank sends `checksums.txt` when those of all ranks are there: with it a checkpoint is complete,
without it there is none. Then LATEST names it, and only then are older ones removed.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.checkpoint import checksums
from pretrain.checkpoint.folder import LATEST, OWNER, UNFINISHED, CheckpointFolder, folder_name, iteration_of, tracked
from pretrain.errors import DamageError, PretrainError
from pretrain.stores.address import is_address, url_path
from pretrain.stores.local_copies import node_copy, place_of, remove_copy
from pretrain.stores.object_store import ObjectStore
from pretrain.stores.stored_inputs import same_for_ranks, some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pretrain.recipe import Recipe
    from pretrain.stores.object_store import StoredObject

_OF_DEEPSPEED = "latest"  # Megatron-DeepSpeed writes LATEST too, but no folder of that name
_COPYING_MINUTES = 24 * 60  # timeout of ranks that wait until their node has copied a checkpoint


@dataclass(frozen=True, slots=True)
class StoredFolder(CheckpointFolder):
    """Checkpoints at an address; `path` is where ranks write the files that are then sent."""

    address: str = ""

    @property
    def is_local(self) -> bool:
        """Whether the checkpoints are in a folder of this machine: no."""
        return False

    @property
    def place(self) -> str:
        """The address."""
        return self.address

    def is_at(self, given: str) -> bool:
        """Say whether a path or an address of a recipe is this folder."""
        return is_address(given) and url_path(given) == self.address

    def is_inside(self, run_dir: Path) -> bool:  # noqa: ARG002  the base's signature
        """Say that it is outside of every run's directory."""
        return False

    def begin(self, iteration: int, *, is_main: bool, barrier: Callable[[], None]) -> Path:
        """Return an empty folder of the run directory; all ranks call it together."""
        if is_main:
            self._remove([iteration])  # the run was started again from an older one
        return CheckpointFolder.begin(self, iteration, is_main=is_main, barrier=barrier)

    def send(self, file: Path) -> None:
        """Write a complete file to the store, and remove it here."""
        iteration = int(file.parent.name.removeprefix(UNFINISHED))
        self._store.put(file, f"{folder_name(iteration)}/{file.name}")
        file.unlink()

    def publish(self, iteration: int) -> None:
        """Name a checkpoint that was sent in LATEST, and remove older ones; one rank, any thread."""
        self.write(LATEST, tracked(str(iteration)).encode())
        if self.keep is not None:
            begun, complete = self._begun_and_complete()
            kept = [each for each in complete if each <= iteration][-self.keep :]
            # Those that are not complete are of killed runs.
            self._remove([old for old in begun if old < iteration and old not in kept])
        with self.written():
            self._remove_unfinished()

    def read(self, name: str) -> bytes | None:
        """Return the content of a small object; None: it is not there."""
        return self._store.read(name)

    def write(self, name: str, content: bytes) -> None:
        """Write a small object."""
        self._store.write(name, content)

    def has(self, iteration: int) -> bool:
        """Say whether a checkpoint is complete there."""
        return bool(self._store.named([f"{folder_name(iteration)}/{checksums.FILE}"]))

    def iterations(self) -> list[int]:
        """Return the iterations of all complete checkpoints, ascending."""
        return self._begun_and_complete()[1]

    def require_writable(self) -> None:
        """Write a small object and remove it."""
        self._store.require_writable()

    @contextmanager
    def opened(self, iteration: int) -> Iterator[Path]:
        """Give this node's copy of one checkpoint, which is removed after the block; all ranks together."""
        import torch.distributed as dist  # noqa: PLC0415  the launcher's checks do without it

        store = ObjectStore(self.named(iteration))
        folder = _copied_on_every_node(store, store.objects)
        try:
            yield folder
            dist.barrier()
        finally:
            if _is_first_of_node():
                remove_copy(folder)

    @property
    def _store(self) -> ObjectStore:
        return ObjectStore(self.address)

    def _begun_and_complete(self) -> tuple[list[int], list[int]]:
        """Return the iterations of which there is anything, and those that are complete; both ascending."""
        parts = [each.name.partition("/") for each in self._store.objects()]
        found = {(iteration_of(folder), name == checksums.FILE) for folder, _, name in parts}
        numbers = sorted((number, is_last) for number, is_last in found if number is not None)
        return list(dict(numbers)), [number for number, is_last in numbers if is_last]

    def _remove(self, iterations: list[int]) -> None:
        for iteration in iterations:
            names = [f"{folder_name(iteration)}/{each.name}" for each in ObjectStore(self.named(iteration)).objects()]
            # Its checksums first, and alone: from then on it is not complete.
            first = f"{folder_name(iteration)}/{checksums.FILE}"
            self._store.remove([name for name in names if name == first])
            self._store.remove([name for name in names if name != first])


def folder_of_run(recipe: Recipe, run_dir: Path) -> CheckpointFolder:
    """Return the folder of a run: RUN/checkpoints, or the one that `checkpoint.save` names."""
    save, keep, inside = recipe.checkpoint.save, recipe.checkpoint.keep, run_dir / "checkpoints"
    if isinstance(save, bool):
        return CheckpointFolder(inside, keep)
    return StoredFolder(inside, keep, save) if is_address(save) else CheckpointFolder(Path(save), keep)


def checkpoint_folder(given: str | Path) -> Path:
    """Return a path as it is; for an address this node's copy of its latest checkpoint, or of all that is there."""
    address = str(given)
    if not is_address(address):
        return Path(given)
    store = ObjectStore(address)
    choose = partial(_latest_in, store)
    return same_for_ranks(address, lambda: node_copy(store, choose, partial(_require_intact, address)))


def checkpoint_folder_of_ranks(given: str) -> Path:
    """Return what `checkpoint_folder` does, on every node of what the first rank chooses; all ranks together."""
    if not is_address(given):
        return Path(given)
    store = ObjectStore(given)
    return _copied_on_every_node(store, partial(_latest_in, store))


def _latest_in(store: ObjectStore) -> list[StoredObject]:
    """Return the objects of the latest checkpoint, or all there are; CheckpointError: LATEST names none."""
    content, there = store.read(LATEST), store.objects()
    named = (content or b"").partition(b"\n")[0].decode(errors="replace").strip()
    name = folder_name(int(named)) if named.isdecimal() and named.isascii() else named  # Megatron-LM's: "release"
    if inside := [each for each in there if each.name.startswith(f"{name}/")]:
        return [*store.named([LATEST, OWNER]), *inside]
    if content is not None and not store.named([_OF_DEEPSPEED]):
        StoredFolder(Path(), None, store.address).latest()  # raises, and copies nothing
    return some(store.address, there)


def _copied_on_every_node(store: ObjectStore, choose: Callable[[], list[StoredObject]]) -> Path:
    """Return this node's copy, which one of its ranks makes, of what the first rank chooses; all ranks together."""
    from pretrain.checkpoint.agreement import between_hosts, first_of, gathered  # noqa: PLC0415  torch, as above
    from pretrain.collectives import on_rank0  # noqa: PLC0415

    objects = on_rank0(choose)
    failed: PretrainError | None = None
    if _is_first_of_node():
        try:
            node_copy(store, choose, partial(_require_intact, store.address), objects)
        except PretrainError as error:
            failed = error
    waiting = between_hosts("copy of a checkpoint", _COPYING_MINUTES)
    of_all = gathered(failed, waiting)
    failed = first_of(next((each for each in of_all or () if each is not None), None), waiting)
    if failed is not None:
        raise failed
    return place_of(store, objects)


def _is_first_of_node() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _require_intact(address: str, copy: Path) -> None:
    """Compare a copy with the checksums of the checkpoints in it."""
    for listed in copy.rglob(checksums.FILE):
        folder = listed.parent
        if checksums.are_there(folder) and (problem := checksums.damage_in_share(folder)):
            raise DamageError(problem.replace(str(copy), address))
