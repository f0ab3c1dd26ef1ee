"""Copies of a run's state on the disks of its nodes, from which a restart on the same nodes goes on.

Each rank writes what it holds, a share of what its data-parallel ranks hold alike, and the rank of the same number on
the node before keeps the same bytes too: a node may be replaced. Only the same layout reads them.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config

from pretrain import __version__
from pretrain.atomic_files import replacing, try_to_write
from pretrain.checkpoint import generators
from pretrain.checkpoint.checksums import FileDigest, Recorder, digest_of, file_digest
from pretrain.checkpoint.contents import Loaded
from pretrain.checkpoint.copies import node_shares
from pretrain.checkpoint.folder import FORMAT
from pretrain.checkpoint.identity import differences
from pretrain.checkpoint.owner import run_identity
from pretrain.checkpoint.saved_schedule import restore_schedule
from pretrain.checkpoint.snapshot import cause_of, first_line
from pretrain.checkpoint.storage import NoCommon
from pretrain.collectives import first_problem, on_rank0
from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pretrain.checkpoint.contents import Saved
    from pretrain.checkpoint.copies.peers import Peers
    from pretrain.recipe import Recipe

GENERATIONS = 2  # of copies that are kept: one is complete while the next is written
_STATE, _ABOUT = "state.pt", "copy.json"
_NONE = -1
_SECTIONS = {"model", "precision", "parallel", "engine", "optimizer", "tokenizer", "data", "train", "schedule"}
"""Of the recipe, all that a state depends on: with another one the run has taken another way since."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What a rank's copy tells of itself; it is complete where this is there, which is written last."""

    made: int  # nanoseconds since the epoch on the first rank: equal on all ranks, and larger in later copies
    iteration: int
    after: int  # iteration of the run's latest checkpoint when it was made; -1 without one
    layout: str  # digest of what must be the same where it is read
    digest: str = ""
    size: int = 0


class NodeCopies:
    """The copies of one run; all ranks call every method together, but for `forget`."""

    def __init__(self, recipe: Recipe, run_dir: Path, peers: Peers, vocab_size: int) -> None:
        """Use `checkpoint.local_dir` of the recipe; CheckpointError: a node cannot write there. Collective."""
        self._place, self._run_dir = Path(recipe.checkpoint.local_dir or ""), run_dir
        self._found: Path | None = None
        self._peers = peers
        sections = recipe.model_dump(mode="json", include=_SECTIONS)
        places = [vocab_size, peers.ranks, peers.of_node]
        versions = [FORMAT, __version__, version("megatron-core"), torch.__version__]
        self._layout = digest_of(json.dumps([sections, places, versions], sort_keys=True).encode())
        if problem := first_problem(_problem_of(partial(try_to_write, self._place))):
            msg = f"checkpoint.local_dir cannot be written: {problem}\nName a folder that every node can write."
            raise CheckpointError(msg)
        self.resumed = False  # the run goes on from one
        self.notices: list[str] = []  # of copies that were left out
        self._has_begun = False  # to overwrite the engine's state

    @property
    def _folder(self) -> Path:
        """The run's folder on this node."""
        if self._found is None:
            msg = "the run has no identity yet"
            raise RuntimeError(msg)
        return self._found

    def _find(self) -> bool:
        """Find the run's folder; return whether the run has an identity, from its first checkpoint's folder on."""
        if self._found is None and (named := on_rank0(partial(_name_of, self._run_dir))):
            self._found = self._place / named
        return self._found is not None

    def save(self, engine: Saved, progress: Mapping[str, Any], after: int | None) -> str | None:
        """Copy the state of an iteration, whose latest checkpoint is `after`; return why that failed, None if not."""
        if not self._find():
            return "the run has no identity"
        iteration = progress["iteration"]
        content = node_shares.content_of(engine, progress)
        last = max((copy.made for copy in self._copies().values() if copy), default=0)
        made = self._peers.most(max(time.time_ns(), last + 1))  # a clock may go back, or be another node's
        self._remove_before(last)
        own, kept = (self._of_iteration(iteration, owner) for owner in self._peers.owners)
        about = Copy(made, iteration, _NONE if after is None else after, self._layout)
        problem = first_problem(_problem_of(partial(_write, own, content, about)))
        if problem is None and self._peers.are_several:
            passed = [self._peers.pass_to_next(own / name, kept / name) for name in (_STATE, _ABOUT)]
            problem = first_problem(next(filter(None, passed), None))
        if problem is not None:
            for directory in (own, kept):
                shutil.rmtree(directory, ignore_errors=True)
        return problem

    def load(self, engine: Saved, latest: int | None) -> tuple[str, Loaded] | None:
        """Take over the newest copy that all ranks have, here or at their peers; None: none is after `latest`.

        Returns where it is, and the result. `notices` tell why newer ones were left out.
        """
        if not self._find():
            return None
        limit = _NONE if latest is None else latest
        own, kept = (self._fitting(rank, limit) for rank in self._peers.owners)
        there = own.keys() | self._peers.numbers_of_next(sorted(kept)[-GENERATIONS:], GENERATIONS)
        while (found := self._peers.newest_of_all(there)) >= 0:
            iteration = self._peers.most(max((c[found].iteration for c in (own, kept) if found in c), default=_NONE))
            taken = first_problem(self._get_back(iteration, found)) or self._load(engine, iteration)
            if not isinstance(taken, str):
                self._remove_after(found)
                self.resumed = True
                return f"the nodes' copies of iteration {iteration} ({self._place}), newer than any checkpoint", taken
            self.notices.append(f"The nodes' copies of iteration {iteration} were left out: {taken}.")
            there.discard(found)
        if self._has_begun and latest is None:
            msg = f"{self.notices[-1]}\nThere is no checkpoint. Remove {self._folder} on all nodes, and start again."
            raise CheckpointError(msg)
        return None

    def _load(self, engine: Saved, iteration: int) -> Loaded | str:
        """Take over the copy of an iteration, which all ranks have; return why that cannot be."""
        directory, opened = self._of_iteration(iteration, self._peers.rank), []

        def open_state() -> None:
            save_config(CheckpointingConfig("torch_dist", 1), str(directory))  # of what megatron-core asks
            opened.append(torch.load(directory / _STATE, map_location="cpu", mmap=True, weights_only=True))

        if problem := first_problem(_problem_of(open_state)):
            return problem
        (content,) = opened
        common, strategy = content["common"], node_shares.FromNodes(content)

        def read(request: dict[str, Any]) -> dict[str, Any]:
            given: dict[str, Any] = dist_checkpointing.load(
                request, str(directory), strategy, NoCommon(), validate_access_integrity=False
            )
            return given

        self._has_begun = True
        engine.state.load(read, common["counters"])
        if problem := first_problem(strategy.problem):
            return problem
        notices = [*restore_schedule(engine.schedule, common["schedule"], engine.recipe)]
        notices += differences(engine.recipe, common)
        generators.restore(read({"rng": generators.sharded_states()})["rng"])
        return Loaded(progress=common["progress"], notices=notices)

    def forget(self) -> None:
        """Remove the copies on this node; all ranks call it: no start is to go on from them."""
        if self._found is not None:
            shutil.rmtree(self._found, ignore_errors=True)

    def _of_iteration(self, iteration: int, owner: int) -> Path:
        """Return the folder of a rank's copy here; nodes that are tried on one machine share a disk."""
        return self._folder / f"rank-{owner}-at-{self._peers.rank}" / f"{iteration:07d}"

    def _copies(self, owner: int | str = "*", at: str = "") -> dict[Path, Copy | None]:
        """Return the folders of the copies that this rank has on its disk, or `at` another; None: not complete."""
        try:
            return {each: _about(each) for each in self._folder.glob(f"rank-{owner}-at-{at or self._peers.rank}/*")}
        except OSError:  # of one rank, which the others do not know; a save says why nothing can be written
            return {}

    def _fitting(self, owner: int, latest: int) -> dict[int, Copy]:
        """Return the complete copies of a rank that this run may go on from, after its `latest` checkpoint."""
        copies = {copy.made: copy for copy in self._copies(owner).values() if copy}
        if copies and copies[max(copies)].after > latest:  # the user has gone back to a checkpoint before that one
            return {}
        fitting = (copy for copy in copies.values() if copy.layout == self._layout)
        return {copy.made: copy for copy in fitting if copy.after <= latest < copy.iteration}

    def _get_back(self, iteration: int, made: int) -> str | None:
        """Get the own copy back from the next node if it is not whole here; return why it cannot be had."""
        own, kept = (self._of_iteration(iteration, owner) for owner in self._peers.owners)
        lacks = not _is_whole(own, made)
        if lacks:
            shutil.rmtree(own, ignore_errors=True)
        if self._peers.are_several:
            before_lacks = self._peers.number_of_before(int(lacks))
            for name in (_STATE, _ABOUT):
                self._peers.pass_to_before(kept / name if before_lacks else None, own / name if lacks else None)
        if not lacks or _is_whole(own, made):
            return None
        shutil.rmtree(own, ignore_errors=True)
        return f"rank {self._peers.rank} has no whole one"

    def _remove_before(self, made: int) -> None:
        """Remove earlier copies, also those of ranks that this node had before, and those of its own not complete."""
        own = self._copies()
        for directory, copy in self._copies(at="*").items():
            if directory in own if copy is None else copy.made < made:
                shutil.rmtree(directory, ignore_errors=True)

    def _remove_after(self, made: int) -> None:
        """Remove the copies that were left out: the next save keeps the latest one, and removes what is before it."""
        for directory, copy in self._copies().items():
            if copy is None or copy.made > made:
                shutil.rmtree(directory, ignore_errors=True)


def _name_of(run_dir: Path) -> str | None:
    """Return a name of the run that a copy of its directory does not have; None before it has an identity."""
    identity = run_identity(run_dir)
    return identity and digest_of(json.dumps([identity, str(run_dir.resolve())]).encode())


def _write(directory: Path, content: Any, about: Copy) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    recorder = Recorder()
    file: Any
    with recorder.open(directory / _STATE, "wb") as file:
        torch.save(content, file)
    with replacing(directory / _ABOUT, error=None, durable=False) as stream:
        stream.write(json.dumps(asdict(replace(about, **asdict(recorder.files[_STATE])))).encode())


def _about(directory: Path) -> Copy | None:
    try:
        return Copy(**json.loads((directory / _ABOUT).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _is_whole(directory: Path, made: int) -> bool:
    copy = _about(directory)
    if copy is None or copy.made != made:
        return False
    try:
        return file_digest(directory / _STATE) == FileDigest(copy.digest, copy.size)
    except OSError:
        return False


def _problem_of(write: Callable[[], None]) -> str | None:
    try:
        write()
    except (OSError, RuntimeError) as error:  # torch.save tells a full disk as a RuntimeError
        return first_line(cause_of(error))
    return None
