"""Steps about files: speed of the token files; the checkpoint folder, which all nodes must see alike."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.tools.doctor.files.checkpoint_folder import judge_seen, judge_written
from pretrain.tools.doctor.files.checkpoint_size import checkpoint_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.files.checkpoint_folder import FolderProbe
    from pretrain.tools.doctor.finding import Finding
    from pretrain.tools.doctor.ranks.board import Board
    from pretrain.tools.doctor.ranks.step import Answers

_PATIENCE = 5.0
"""Seconds that a network file system gets to show what another node has written."""


@dataclass(frozen=True, slots=True)
class FolderStep:
    """The folder of the checkpoints, once a node: writable, with space, fast enough."""

    recipe: Recipe
    board: Board
    probe: FolderProbe
    name = "checkpoint folder"
    collective = False

    def orders(self, known: Mapping[str, Answers]) -> Any:  # noqa: ARG002
        """Return a word that makes the names of this run's files its own."""
        return {"run": secrets.token_hex(4)} if self.recipe.checkpoint.save is not False else None

    def measure(self, orders: Any) -> Any:
        """Write."""
        self.probe.run = orders["run"]  # also on ranks that write nothing: one of them may have to remove the files
        if self.board.world.local_rank:
            return None
        return {**self.probe.write(orders["run"], self.board.doing), "run": orders["run"]}

    def judge(self, answers: Answers) -> list[Finding]:
        """Compare with what checkpoints need."""
        return judge_written(parts(answers), checkpoint_bytes(self.recipe))


@dataclass(frozen=True, slots=True)
class SharedFolderStep:
    """The same folder: every node must see what the others have written there."""

    board: Board
    probe: FolderProbe
    name = "shared checkpoint folder"
    collective = False

    def orders(self, known: Mapping[str, Answers]) -> Any:
        """Return the ranks that have written; with fewer than two there is nothing to share."""
        written = {rank: each for rank, each in parts(known.get(FolderStep.name, {})).items() if not each["error"]}
        if len(written) < 2:
            return None
        return {"run": next(iter(written.values()))["run"], "ranks": list(written)}

    def measure(self, orders: Any) -> Any:
        """Look."""
        if self.board.world.rank not in orders["ranks"]:
            return None
        patience = min(_PATIENCE, self.board.timeout / 3)
        return self.probe.unseen(orders["run"], orders["ranks"], self.board.doing, patience)

    def judge(self, answers: Answers) -> list[Finding]:
        """Name the nodes that do not see the others' files."""
        return judge_seen(parts(answers))


@dataclass(frozen=True, slots=True)
class RemovalStep:
    """Removal of the files, at once: a rank that is stopped later leaves nothing behind."""

    board: Board
    probe: FolderProbe
    name = "removal of the doctor's files"
    collective = False

    def orders(self, known: Mapping[str, Answers]) -> Any:
        """Leave it out where nothing was written."""
        return {} if FolderStep.name in known else None

    def measure(self, orders: Any) -> Any:  # noqa: ARG002
        """Remove, once a node."""
        if not self.board.world.local_rank:
            self.probe.remove()

    def judge(self, answers: Answers) -> list[Finding]:  # noqa: ARG002
        """Return nothing: what could not be removed could not be written either."""
        return []


def parts(answers: Answers) -> Answers:
    """Return the answers of the ranks that had a part in a step."""
    return {rank: each for rank, each in answers.items() if each is not None}
