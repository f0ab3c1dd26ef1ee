"""A training at the moment of its fault, as a person at the machine has it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos.tiny_training import ITERATIONS
from pretrain.checkpoint.checksums import damage_in_share
from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.errors import PretrainError

if TYPE_CHECKING:
    from pathlib import Path

    from chaos.bounded_command import BoundedCommand
    from chaos.planted import Planted

Logged = tuple[tuple[int, float | None, float | None], ...]
"""Iteration, loss and gradient norm of each line of metrics.jsonl."""


_UNFINISHED = (".unfinished*", f".{LATEST}.*")
"""Patterns of what a save has before it is complete."""


def checkpoint_folder(run_dir: Path) -> CheckpointFolder:
    """Return the folder of a run's checkpoints."""
    return CheckpointFolder(run_dir / "checkpoints")


@dataclass(kw_only=True, slots=True)
class Scene:
    """A training of which something is known from outside.

    Attributes:
        run_dir: of the training.
        planted: what its ranks do themselves.
        ranks: number of them.
        commands: that run it, one for each node; the first is watched.
        said: what the rank at the gate has told.
        output: of the command that has ended, for a repair.
    """

    run_dir: Path
    planted: Planted
    ranks: int
    commands: list[BoundedCommand] = field(default_factory=list)
    said: dict[str, Any] = field(default_factory=dict)
    output: str = ""

    @property
    def checkpoints(self) -> CheckpointFolder:
        """The folder of its checkpoints."""
        return checkpoint_folder(self.run_dir)

    def process_of(self, rank: int) -> int:
        """Return the process of a rank.

        Raises:
            LookupError: it is not known.
        """
        process = self.planted.process_of(rank)
        if process is None:
            raise LookupError(rank)
        return self.member(process)

    def member(self, process: int) -> int:
        """Return a process that was named to us, so that no other program's is met.

        Raises:
            LookupError: it is none of the commands' (any more).
        """
        if not any(command.has(process) for command in self.commands):
            raise LookupError(process)
        return process

    def kill_unseen(self) -> None:
        """Kill the ranks that have told their processes, where what is left of a command cannot be seen."""
        noted = [process for rank in range(self.ranks) if (process := self.planted.process_of(rank)) is not None]
        for command in self.commands:
            for process in noted:
                command.kill_group(process)

    def flaws(self) -> list[str]:
        """Return what must not be at the end: damaged lines of metrics, another latest checkpoint, unfinished ones."""
        folder, found = self.checkpoints, list[str]()
        if self._records() is None:
            found.append("a line of metrics.jsonl is broken")
        try:
            if (latest := folder.latest()) != ITERATIONS:
                found.append(f"{LATEST} names iteration {latest}, not {ITERATIONS}")
        except PretrainError as error:
            found.append(str(error).splitlines()[0])
        left = sorted(entry.name for pattern in _UNFINISHED for entry in folder.path.glob(pattern))
        return found + ([f"left in the folder of checkpoints: {', '.join(left)}"] if left else [])

    def states(self) -> dict[int, str]:
        """Return the damage of each complete checkpoint by its iteration; "" of those that are intact."""
        folder = self.checkpoints
        return {number: damage_in_share(folder.directory(number)) or "" for number in folder.iterations()}

    def logged(self) -> Logged:
        """Return what the training has logged; nothing if a line is broken."""
        trained = [record for record in self._records() or () if record.get("kind") == "train"]
        return tuple((record["iteration"], record["lm_loss"], record["grad_norm"]) for record in trained)

    def _records(self) -> list[dict[str, Any]] | None:
        """Return the lines of metrics.jsonl; None if one is broken."""
        try:
            return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]
        except FileNotFoundError:
            return []
        except (OSError, ValueError):
            return None
