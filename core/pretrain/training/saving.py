"""Checkpoints of a run, from the loop's point of view: the one that it starts from, and those that it saves."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch.distributed as dist

from pretrain.checkpoint import generators, storage
from pretrain.checkpoint.background import BackgroundSaves
from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.checkpoint.foreign_checkpoints import foreign_checkpoints
from pretrain.checkpoint.owner import claim
from pretrain.checkpoint.snapshot import Snapshot
from pretrain.checkpoint.starting_checkpoint import nothing_to_load, own_latest
from pretrain.checkpoint.stored_folder import checkpoint_folder_of_ranks, folder_of_run
from pretrain.collectives import on_rank0
from pretrain.errors import CheckpointError, DamageError, MisnamedError
from pretrain.stores.local_copies import shown_place
from pretrain.training.event import Event
from pretrain.training.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pretrain.checkpoint.contents import Loaded, Saved
    from pretrain.checkpoint.copies.node_copies import NodeCopies
    from pretrain.engine.protocol import Step
    from pretrain.recipe import Recipe
    from pretrain.training.event import Due
    from pretrain.training.rank_setup import RankSetup

_FRESH = "no checkpoint yet: started from the beginning"


def start_from(
    recipe: Recipe, engine: Saved, run_dir: Path, *, resume: bool, copies: NodeCopies | None = None
) -> tuple[Progress, str]:
    """Load the checkpoint that the run starts from; return the progress and a remark for the user."""
    # A resumed run takes its own latest checkpoint, or its nodes' copies of a later iteration; without one, and for a
    # new run, `checkpoint.load` counts.
    own = folder_of_run(recipe, run_dir)
    if resume and copies is not None and (copied := copies.load(engine, on_rank0(partial(own_latest, own)))):
        return Progress.from_mapping(copied[1].progress), _remark("resumed", *copied)
    if resume and (loaded := load_latest(own, engine, latest=own_latest)):
        return Progress.from_mapping(loaded[1].progress), _remark("resumed", *loaded)
    if recipe.checkpoint.load is None:
        return Progress(), _FRESH if resume else ""
    is_own = own.is_at(recipe.checkpoint.load)
    given = own if is_own else CheckpointFolder(checkpoint_folder_of_ranks(recipe.checkpoint.load))
    finetune = recipe.checkpoint.finetune
    others = foreign_checkpoints()
    if given.is_local and (foreign := on_rank0(partial(others.foreign_summary, given.path))):
        taken = others.load(engine, given.path, finetune=finetune)
        return Progress.from_mapping(taken.progress), _remark("weights", shown_place(foreign.path), taken)
    loaded = load_latest(given, engine, weights_only=finetune)
    if loaded is None:
        if is_own:
            # The first start of a command that a scheduler repeats: load and save are one folder.
            return Progress(), f"{recipe.checkpoint.load}: {_FRESH}"
        raise nothing_to_load(given)
    told = loaded[1].progress
    progress = Progress(tokenizer=told.get("tokenizer")) if finetune else Progress.from_mapping(told)
    return progress, _remark("weights" if finetune else "continued", *loaded)


def load_latest(
    folder: CheckpointFolder,
    engine: Saved,
    *,
    weights_only: bool = False,
    latest: Callable[[CheckpointFolder], int | None] = CheckpointFolder.latest,
) -> tuple[str, Loaded] | None:
    """Load the folder's latest checkpoint; return where it is and the result, or None if there is none."""
    iteration = None
    try:
        iteration = on_rank0(partial(latest, folder))
        if iteration is None:
            return None
        with folder.opened(iteration) as directory:
            return shown_place(directory), storage.load(engine, directory, weights_only=weights_only)
    except MisnamedError:  # it is intact, and the message says what to do
        raise
    except DamageError as error:  # every rank has it
        msg = f"{error}\n{_newest_intact(folder, iteration)}"
        raise DamageError(msg) from error


def _newest_intact(folder: CheckpointFolder, damaged: int | None) -> str:
    """Return the advice after a damaged checkpoint, or damaged LATEST (None); all ranks call it together."""
    if folder.is_local and folder.place != str(folder.path):
        return f"It is this node's copy of {folder.place}: remove {folder.path.parent}, and start again."
    # Later ones than the damaged one come last: they belong to a part that was abandoned.
    unverified = []
    there = [each for each in on_rank0(folder.iterations) if each != damaged]
    for iteration in sorted(there, key=lambda each: (damaged is None or each <= damaged, each), reverse=True):
        try:
            with folder.opened(iteration) as directory:
                common = storage.opened(directory)
        except CheckpointError:  # damaged too, or of a later format
            continue
        if storage.has_checksums(common):
            return (
                f"The newest intact checkpoint is iteration {iteration}: write {iteration} into "
                f"{folder.place}/{LATEST}, and start again."
            )
        unverified.append(iteration)
    if unverified:
        return (
            f"No checkpoint with checksums is intact. Iteration {unverified[0]} has none and may be intact: "
            f"to try it, write {unverified[0]} into {folder.place}/{LATEST}, and start again."
        )
    return f"No checkpoint in {folder.place} is intact: restore a copy, or start a new run."


def _remark(how: str, place: str, loaded: Loaded) -> str:
    return "\n".join((f"{how} from {place}", *loaded.notices))


@dataclass(slots=True)
class Saving(Event):
    """Writes checkpoints into one folder, each iteration once; a context that is left when nothing is being written."""

    folder: CheckpointFolder
    rank: int  # 0 makes and removes folders
    background: BackgroundSaves | None = None  # writes while the training goes on; None: it waits
    copies: NodeCopies | None = None  # of iterations after the latest checkpoint; None: none
    seeded: dict[str, Any] | None = None  # states of the random generators before a checkpoint was loaded; None: left
    latest: int | None = field(default=None, init=False)  # iteration saved, begun to be saved, or resumed from
    has_new_step: bool = field(default=False, init=False)  # a step was taken since then
    # The first checkpoint with the weights of the latest; None: no step saved.
    trained_until: int | None = field(default=None, init=False)
    _saved: int | None = field(default=None, init=False)
    _distrusts: bool = field(default=False, init=False)
    _trusted: int | None = field(default=None, init=False)

    def is_done(self, progress: Progress) -> bool:
        """Say whether this iteration has been saved, or is what was loaded."""
        return self._saved == progress.iteration

    def save(self, engine: Saved, progress: Progress, *, trains_on: bool = False) -> str | None:
        """Write a checkpoint and return where it is; all ranks together."""
        saved = None
        if self.background is not None and trains_on:
            take = partial(Snapshot.take, engine, progress=progress.to_mapping(), copies=True, send=self.folder.send)
            self.background.start(progress.iteration, take)
        else:
            self.settle()
            write = partial(storage.save, engine, progress=progress.to_mapping(), send=self.folder.send)
            saved = self.folder.save(progress.iteration, write, is_main=self.rank == 0, barrier=dist.barrier)
        if self.has_new_step:
            self.trained_until = progress.iteration
        self._saved, self.latest, self.has_new_step = progress.iteration, progress.iteration, False
        return saved

    def end_step(self, iteration: int, step: Step) -> None:  # noqa: ARG002  an event's signature
        """Take note that the weights may have changed."""
        self.has_new_step = True

    def after_iteration(self, due: Due) -> bool:  # noqa: ARG002  as above
        """Report a checkpoint that has become complete beside the steps; raise on all ranks what was not written."""
        if self.background is not None:
            self.background.poll()
        return False

    def settle(self) -> None:
        """Wait until nothing is being written, and raise what could not be; all ranks together."""
        if self.background is not None:
            self.background.wait()

    def finish(self) -> None:
        """Wait until nothing is being written, and only report what could not be: for a run that ends with an error."""
        if self.background is not None:
            self.background.finish()

    def distrust_after(self, trusted: int | None) -> str:
        """Let no run resume by itself from a checkpoint after an iteration (None: any); return what a user must do."""
        # One that is being written is named by no LATEST either, once this context is left. Called on all ranks.
        if self.copies is not None:
            self.copies.forget()
        if not self._is_after(self.latest, trusted):
            return ""
        self._distrusts, self._trusted = True, trusted
        after = "" if trusted is None else f" after iteration {trusted}"
        try:
            self._distrust()
        except CheckpointError as error:
            return f"A checkpoint{after} may contain the fault: do not resume from it. {error}"
        return (
            f"A checkpoint{after} may contain the fault: --resume refuses it until you write the iteration of one "
            f"that you trust into {self.folder.place}/{LATEST}."
        )

    def _distrust(self) -> None:
        if self.rank != 0:
            return
        try:
            latest = self.folder.latest()
        except CheckpointError:  # it names none already
            return
        if self._is_after(latest, self._trusted):
            self.folder.name_none("replicas differed" + ("" if self._trusted is None else f" after {self._trusted}"))

    @staticmethod
    def _is_after(iteration: int | None, trusted: int | None) -> bool:
        return iteration is not None and (trusted is None or iteration > trusted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is None:
            self.settle()
        elif issubclass(kind, Exception):  # a second Ctrl-C does not wait
            self.finish()
            if self._distrusts:
                with suppress(CheckpointError):  # told before
                    self._distrust()

    def mark_loaded(self, progress: Progress, *, is_own: bool = True) -> None:
        """Mark this iteration's checkpoint as the one that was loaded, from this folder unless it is not `is_own`."""
        self._saved = progress.iteration
        self.latest = progress.iteration if is_own else None
        self.has_new_step = False

    def mark_copy_loaded(self, latest: int | None) -> None:
        """Mark that the nodes' copies were loaded, of an iteration after the latest checkpoint."""
        self.latest, self.has_new_step = latest, True

    def copy_to_nodes(self, engine: Saved, progress: Progress) -> str | None:
        """Copy the state to the nodes' disks; return why that failed, None if not; all ranks together."""
        if self.copies is None or self.is_done(progress):
            return None
        return self.copies.save(engine, progress.to_mapping(), on_rank0(self._published))

    def _published(self) -> int | None:
        """Return the iteration of the latest checkpoint that is complete."""
        try:
            return self.folder.latest()
        except CheckpointError:  # a resume would have the same error
            return self.latest

    def leave_out(self, progress: Progress) -> None:
        """Write no checkpoint of this iteration."""
        self._saved = progress.iteration

    def load_latest(self, engine: Saved) -> tuple[Progress, list[str]]:
        """Take the engine back to the latest checkpoint; return its progress, and notices; all ranks together."""
        # The random generators are as after a start from it, also where its layout was another one.
        self.settle()
        if self.copies is not None:
            self.copies.forget()
        if self.seeded is not None:
            generators.restore(self.seeded)
        loaded = load_latest(self.folder, engine, latest=lambda _folder: self.latest)
        if loaded is None:
            raise nothing_to_load(self.folder)
        progress = Progress.from_mapping(loaded[1].progress)
        self.mark_loaded(progress)
        return progress, list(loaded[1].notices)


def open_saving(
    setup: RankSetup,
    run_dir: Path,
    progress: Progress,
    notify: Callable[[str], None],
    seeded: dict[str, Any],
    *,
    resumed: bool,
    copies: NodeCopies | None = None,
) -> Saving | None:
    """Return what saves a run that starts from `progress`, or None if it saves nothing; all ranks call it together."""
    recipe, rank = setup.recipe, setup.world.rank
    if recipe.checkpoint.save is False:
        return None
    folder, background = folder_of_run(recipe, run_dir), None
    if recipe.checkpoint.async_save:
        minutes = recipe.parallel.distributed_timeout_minutes
        background = BackgroundSaves(folder, is_main=rank == 0, notify=notify, timeout_minutes=minutes)
    saving = Saving(folder, rank, background, copies, seeded)
    if rank == 0:
        claim(recipe, run_dir, resume=resumed)
    if copies is not None and copies.resumed:
        saving.mark_copy_loaded(on_rank0(partial(own_latest, folder)))
    elif resumed and progress.iteration:
        saving.mark_loaded(progress, is_own=progress.iteration in on_rank0(folder.iterations))
    return saving
