"""A fault: what is done to a training, and how that must end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.planted import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.scene import Scene


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """End of one command as it must be.

    Attributes:
        exit_code: 0; or of a user error or a signal, after which the same command is given again.
        says: patterns (`re`) that its output must have; what the first one finds names the cause.
        restarts: that its launcher makes.
    """

    exit_code: int
    says: tuple[str, ...] = ()
    restarts: int = 0

    def cause(self, output: str) -> str:
        """Return the words of the output that name the cause; "" without any."""
        found = re.search(self.says[0], output, re.IGNORECASE) if self.says else None
        return " ".join(found[0].split()) if found else ""

    def missing(self, output: str) -> list[str]:
        """Return the patterns that the output does not have."""
        return [pattern for pattern in self.says if re.search(pattern, output, re.IGNORECASE) is None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Something that goes wrong once in a training.

    Attributes:
        name: in a few words.
        planted: what a rank does itself.
        everywhere: whether all ranks do; else the first does, or, with `on_last`, the last.
        on_last: see `everywhere`.
        disturb: what is done from outside while a rank waits at the gate; None: the ranks do it all.
        repair: what a person does, as the message of the ended command says, before it is given again.
        endings: of each command, in their order; with several nodes, of the one that is watched.
        damages: whether the newest checkpoint is damaged on purpose.
        settings: values of `--set`.
        nodes: nodes of the training, all on this machine.
    """

    name: str
    planted: Kind = Kind.GATE
    everywhere: bool = False
    on_last: bool = False
    disturb: Callable[[Scene], None] | None = None
    repair: Callable[[Scene], None] | None = None
    endings: tuple[Ending, ...]
    damages: bool = False
    settings: tuple[str, ...] = ()
    nodes: int = 1

    def rank(self, ranks: int) -> int | None:
        """Return the rank that has it; None for all."""
        return None if self.everywhere else ranks - 1 if self.on_last else 0
