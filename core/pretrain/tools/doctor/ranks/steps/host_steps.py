"""Steps about what ranks bring along: recipe, versions and data; the cores of their hosts."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.launch.one_recipe import differing, stated
from pretrain.tools.doctor.finding import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.ranks.board import Board
    from pretrain.tools.doctor.ranks.step import Answers


@dataclass(frozen=True, slots=True)
class RecipeStep:
    """Comparison of recipe, versions and data on all ranks, as a run makes it."""

    recipe: Recipe
    backend_name: str
    board: Board
    name = "one recipe"
    collective = False

    def orders(self, known: Mapping[str, Answers]) -> Any:  # noqa: ARG002  it needs nothing
        """Return nothing of interest."""
        return {}

    def measure(self, orders: Any) -> Any:  # noqa: ARG002
        """State this rank's."""
        return stated(self.recipe, self.backend_name, reads_files=self.board.world.local_rank == 0)

    def judge(self, answers: Answers) -> list[Finding]:
        """Compare the ranks."""
        text, _, lines = differing(answers).partition("\n")
        if text:
            return [Finding(check=self.name, verdict=Verdict.WRONG, text=text, remedy=lines)]
        ranks = f"{len(answers)} rank{'s' * (len(answers) > 1)}"
        same = f"recipe, versions and content of the data are equal on {ranks}"
        return [Finding(check=self.name, verdict=Verdict.OK, text=same)]


@dataclass(frozen=True, slots=True)
class CoresStep:
    """Cores of each host, against its ranks and their data workers."""

    recipe: Recipe
    name = "cores"
    collective = False

    def orders(self, known: Mapping[str, Answers]) -> Any:  # noqa: ARG002
        """Return nothing of interest."""
        return {}

    def measure(self, orders: Any) -> Any:  # noqa: ARG002
        """Return the cores that this rank is bound to, all of the host where it is not."""
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        return {"host": socket.gethostname(), "cores": sorted(cores)}

    def judge(self, answers: Answers) -> list[Finding]:
        """Name the host with the fewest cores for each of its ranks."""
        ranks, cores = dict[str, list[int]](), dict[str, set[int]]()
        for rank, each in answers.items():
            ranks.setdefault(each["host"], []).append(rank)
            cores.setdefault(each["host"], set()).update(each["cores"])
        host = min(ranks, key=lambda host: len(cores[host]) / len(ranks[host]))
        workers = self.recipe.data.num_workers
        needed, there = len(ranks[host]) * (1 + workers), len(cores[host])
        of_rank = f"(1 + {workers} data worker{'s' * (workers != 1)})"
        text = f"{there} core{'s' * (there != 1)} on {host}; its ranks need {len(ranks[host])} x {of_rank} = {needed}"
        if there >= needed:
            return [Finding(check=self.name, verdict=Verdict.OK, text=text)]
        remedy = f"Allow {needed} (srun --cpus-per-task, taskset, docker --cpuset-cpus), or lower data.num_workers."
        return [Finding(check=self.name, verdict=Verdict.LOOK, text=text, remedy=remedy)]
