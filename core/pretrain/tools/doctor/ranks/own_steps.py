"""Merges the findings of all ranks, and compares recipes, kernels and cores."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.launch.one_recipe import differing, stated
from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.ranks.step import ExaminationStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.ranks.status_board import StatusBoard
    from pretrain.tools.doctor.ranks.step import Answers


MEASURED = frozenset(
    {
        *("device memory", "matmul", "health", "clocks"),
        *("open files", "processes", "shared memory", "locked memory"),
    }
)
"""Checks whose values may differ between ranks that are all well; those of kernels are measurements too."""

DECISIVE = ("torch ", "megatron-core ")
"""Distributions whose versions must be equal: ranks exchange tensors and checkpoints in their formats and order."""


def as_value(finding: Finding) -> dict[str, Any]:
    """Return a finding as a value that JSON knows."""
    return dataclasses.asdict(finding)


def merged(found: Mapping[int, Sequence[Mapping[str, Any]]], world_size: int) -> list[Finding]:
    """Return the findings of all ranks, in the order in which they occur first.

    Equal ones are one finding, with the ranks that have it; without ranks where all have it. Of measurements that are
    ok and differ only in their values (free memory, a speed), that of the lowest rank stands for all. All else
    (versions, drivers, names of devices) must be equal: it is one finding to look at, or a wrong one, with the values.

    Args:
        found: the findings of each rank, as `as_value` returns them.
        world_size: number of all ranks.
    """
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for rank, findings in sorted(found.items()):
        for each in findings:
            key = (each["check"], each["verdict"], each["text"], each["remedy"])
            groups.setdefault(key, []).append(rank)
    kept: dict[str, list[Finding]] = {}
    for (check, verdict, text, remedy), ranks in groups.items():
        whose = () if len(set(ranks)) == world_size else tuple(sorted(set(ranks)))
        finding = Finding(check=check, verdict=Verdict(verdict), text=text, remedy=remedy, ranks=whose)
        kept.setdefault(check, []).append(finding)
    return [finding for findings in kept.values() for finding in _brought_together(findings, world_size)]


def _brought_together(findings: list[Finding], world_size: int) -> list[Finding]:
    """Return one check's findings with the ok ones of single ranks as one, where several ranks have others."""
    fine = [each for each in findings if each.verdict is Verdict.OK and each.ranks]
    ranks = [rank for each in fine for rank in each.ranks]
    if len(fine) < 2 or len(set(ranks)) < len(ranks):  # one rank has several: they are about different things
        return findings
    whose = () if len(ranks) == world_size else tuple(sorted(ranks))
    one = _collapsed(fine) if _is_measured(fine[0].check) else _unequal(fine)
    return [dataclasses.replace(one, ranks=whose), *(each for each in findings if each not in fine)]


def _is_measured(check: str) -> bool:
    return check in MEASURED or check.startswith("kernel")


def _collapsed(fine: list[Finding]) -> Finding:
    first = fine[0]
    others = rank_names([rank for each in fine[1:] for rank in each.ranks])
    text = f"{first.text} ({rank_names(first.ranks)}; ok with other values: {others})"
    return dataclasses.replace(first, text=text)


def _unequal(fine: list[Finding]) -> Finding:
    """Return the finding of software or devices that are right by themselves, and not the same on all ranks."""
    entries = Counter(entry for each in fine for entry in set(each.text.split(", ")))
    different = [entry for entry, count in entries.items() if count < len(fine)]
    verdict = Verdict.WRONG if any(entry.startswith(DECISIVE) for entry in different) else Verdict.LOOK
    listed = "; ".join(f"{rank_names(each.ranks)}: {each.text}" for each in fine)
    remedy = "Take the same software and the same kind of device on all nodes."
    return Finding(check=fine[0].check, verdict=verdict, text=f"not equal on all ranks. {listed}", remedy=remedy)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OwnStep(ExaminationStep):
    """Findings of the ranks' own checks, brought together; answered without the leader's order.

    Attributes:
        own: of this rank.
        has_device: whether this rank has its device, without which neither speed nor links are measured.
        world_size: number of ranks.
        kernels: operation -> kernel that this rank would take, and its provider; empty where none could be chosen.
    """

    own: Sequence[Finding]
    has_device: bool
    world_size: int
    kernels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    name = "checks of each rank"

    def measure(self, orders: Any) -> Any:  # noqa: ARG002
        """Return this rank's findings, which it has made already."""
        findings = [as_value(finding) for finding in self.own]
        return {"findings": findings, "device": self.has_device, "kernels": dict(self.kernels)}

    def judge(self, answers: Answers) -> list[Finding]:
        """Return the findings of all ranks, equal ones once."""
        found = merged({rank: each["findings"] for rank, each in answers.items()}, self.world_size)
        without = [rank for rank, each in answers.items() if not each["device"]]
        if without and self.world_size > 1:
            text = f"speed and links are not measured: {rank_names(without)} without a device"
            remedy = "see the finding about the device"
            found.append(Finding(check="links", verdict=Verdict.LOOK, text=text, remedy=remedy, ranks=tuple(without)))
        return [*found, *_differing_kernels({rank: each["kernels"] for rank, each in answers.items()})]


def _differing_kernels(chosen: Mapping[int, Mapping[str, str]]) -> Iterator[Finding]:
    """Yield a finding for each operation that ranks would serve with different kernels: their losses would diverge."""
    found = {rank: kernels for rank, kernels in sorted(chosen.items()) if kernels}
    for operation in dict.fromkeys(operation for kernels in found.values() for operation in kernels):
        ranks: dict[str, list[int]] = {}
        for rank, kernels in found.items():
            ranks.setdefault(kernels.get(operation, "none"), []).append(rank)
        if len(ranks) > 1:
            text = "; ".join(f"{rank_names(those)}: {kernel}" for kernel, those in ranks.items())
            yield Finding(
                check=f"kernel {operation}",
                verdict=Verdict.WRONG,
                text=f"the ranks would take different kernels: {text}",
                remedy="Install the same versions on every node, or name the kernels (`kernels` of the recipe).",
            )


def all_have_devices(known: Mapping[str, Answers]) -> bool:
    """Say whether every rank has its device."""
    return all(each["device"] for each in known[OwnStep.name].values())


@dataclass(frozen=True, slots=True)
class RecipeStep(ExaminationStep):
    """Comparison of recipe, versions and data on all ranks, as a run makes it."""

    recipe: Recipe
    backend_name: str
    board: StatusBoard
    name = "one recipe"

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
class CoresStep(ExaminationStep):
    """Cores of each host, against its ranks and their data workers."""

    recipe: Recipe
    name = "cores"

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
