"""Merges the findings of all ranks, and compares recipes, kernels, cores and speeds."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from dataclasses import asdict, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from pretrain.launch.one_recipe import differing, stated
from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.device_speed import synchronize
from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.ranks.step_sequence import ExaminationStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.ranks.status_board import StatusBoard
    from pretrain.tools.doctor.ranks.step_sequence import Answers

MEASURED = frozenset(
    {*("device memory", "matmul", "health", "clocks"), *("open files", "processes", "shared memory", "locked memory")}
)
"""Checks whose values may differ between ranks that are all well; those of kernels are measurements too."""
DECISIVE = ("torch ", "megatron-core ")
"""Distributions whose versions must be equal: ranks exchange tensors and checkpoints in their formats and order."""
_OWN = "checks of each rank"


def merged(found: Mapping[int, Sequence[Mapping[str, Any]]], world_size: int) -> list[Finding]:
    """Return the findings of all ranks, given as plain values, in the order in which they occur first."""
    # Equal ones are one finding, with the ranks that have it; without ranks where all have it. Of measurements that are
    # ok and differ only in their values (free memory, a speed), that of the lowest rank stands for all. All else
    # (versions, drivers, names of devices) must be equal: it is one finding to look at, or a wrong one, with the
    # values.
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
    one = fine[0]
    if one.check in MEASURED or one.check.startswith("kernel"):
        others = rank_names([rank for each in fine[1:] for rank in each.ranks])
        one = replace(one, text=f"{one.text} ({rank_names(one.ranks)}; ok with other values: {others})")
    else:
        one = _unequal(fine)
    whose = () if len(ranks) == world_size else tuple(sorted(ranks))
    return [replace(one, ranks=whose), *(each for each in findings if each not in fine)]


def _unequal(fine: list[Finding]) -> Finding:
    """Return the finding of software or devices that are right by themselves, and not the same on all ranks."""
    entries = Counter(entry for each in fine for entry in set(each.text.split(", ")))
    different = [entry for entry, count in entries.items() if count < len(fine)]
    make = Finding.wrong if any(entry.startswith(DECISIVE) for entry in different) else Finding.look
    listed = "; ".join(f"{rank_names(each.ranks)}: {each.text}" for each in fine)
    remedy = "Take the same software and the same kind of device on all nodes."
    return make(fine[0].check, f"not equal on all ranks. {listed}", remedy)


def own_step(
    own: Sequence[Finding], *, has_device: bool, world_size: int, kernels: Mapping[str, str] | None = None
) -> ExaminationStep:
    """Findings of the ranks' own checks, brought together; answered without the leader's order."""
    # `kernels` are operation -> kernel that this rank would take, and its provider; empty where none could be chosen.
    answer = {"findings": [asdict(each) for each in own], "device": has_device, "kernels": dict(kernels or {})}

    def judge(answers: Answers) -> list[Finding]:
        found = merged({rank: each["findings"] for rank, each in answers.items()}, world_size)
        without = [rank for rank, each in answers.items() if not each["device"]]
        if without and world_size > 1:
            text = f"speed and links are not measured: {rank_names(without)} without a device"
            found.append(Finding.look("links", text, "see the finding about the device", without))
        return [*found, *_differing_kernels({rank: each["kernels"] for rank, each in answers.items()})]

    return ExaminationStep(name=_OWN, measure=lambda _: answer, judge=judge)


def _differing_kernels(chosen: Mapping[int, Mapping[str, str]]) -> Iterator[Finding]:
    """Yield a finding for each operation that ranks would serve with different kernels: their losses would diverge."""
    found = {rank: kernels for rank, kernels in sorted(chosen.items()) if kernels}
    for operation in dict.fromkeys(operation for kernels in found.values() for operation in kernels):
        ranks: dict[str, list[int]] = {}
        for rank, kernels in found.items():
            ranks.setdefault(kernels.get(operation, "none"), []).append(rank)
        if len(ranks) > 1:
            text = "; ".join(f"{rank_names(those)}: {kernel}" for kernel, those in ranks.items())
            remedy = "Install the same versions on every node, or name the kernels (`kernels` of the recipe)."
            yield Finding.wrong(f"kernel {operation}", f"the ranks would take different kernels: {text}", remedy)


def orders_with_devices(known: Mapping[str, Answers]) -> dict[str, Any] | None:
    """Return orders without content; None, which leaves a step out, unless every rank has its device."""
    return {} if all(each["device"] for each in known[_OWN].values()) else None


def recipe_step(recipe: Recipe, backend_name: str, board: StatusBoard) -> ExaminationStep:
    """Comparison of recipe, versions and data on all ranks, as a run makes it."""
    name = "one recipe"

    def judge(answers: Answers) -> list[Finding]:
        text, _, lines = differing(answers).partition("\n")
        if text:
            return [Finding.wrong(name, text, lines)]
        ranks = f"{len(answers)} rank{'s' * (len(answers) > 1)}"
        return [Finding.ok(name, f"recipe, versions and content of the data are equal on {ranks}")]

    def measure(_orders: Any) -> Any:
        return stated(recipe, backend_name, reads_files=board.world.local_rank == 0)

    return ExaminationStep(name=name, measure=measure, judge=judge)


def cores_step(recipe: Recipe) -> ExaminationStep:
    """Cores of each host, against its ranks and their data workers."""

    def measure(_orders: Any) -> Any:
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        return {"host": socket.gethostname(), "cores": sorted(cores)}

    return ExaminationStep(name="cores", measure=measure, judge=lambda answers: [_judge_cores(recipe, answers)])


def _judge_cores(recipe: Recipe, answers: Answers) -> Finding:
    ranks, cores = dict[str, list[int]](), dict[str, set[int]]()
    for rank, each in answers.items():
        ranks.setdefault(each["host"], []).append(rank)
        cores.setdefault(each["host"], set()).update(each["cores"])
    host = min(ranks, key=lambda host: len(cores[host]) / len(ranks[host]))
    workers = recipe.data.num_workers
    needed, there = len(ranks[host]) * (1 + workers), len(cores[host])
    of_rank = f"(1 + {workers} data worker{'s' * (workers != 1)})"
    text = f"{there} core{'s' * (there != 1)} on {host}; its ranks need {len(ranks[host])} x {of_rank} = {needed}"
    if there >= needed:
        return Finding.ok("cores", text)
    remedy = f"Allow {needed} (srun --cpus-per-task, taskset, docker --cpuset-cpus), or lower data.num_workers."
    return Finding.look("cores", text, remedy)


_SIZES = (256, 512, 1024, 2048, 4096, 8192)
_LONG = 2e-3  # seconds of a matmul that are enough to compare: starting it on a device takes about 1e-5
_TIME, _LEAST = 0.4, 5
"""Seconds for which matmuls of one size are repeated, and how often at least; the fastest counts, since other
processes only make one slower."""
_SLOWER = 1.1


def speed_step(board: StatusBoard, device: torch.device | None, dtype: torch.dtype) -> ExaminationStep:
    """A matmul on every rank at once, to find slow ones."""

    def measure(_orders: Any) -> Any:
        assert device is not None  # noqa: S101  every rank has said that it has one
        found: dict[str, float] = {}  # size -> seconds of the fastest matmul
        for size in _SIZES:
            board.doing(f"multiply matrices of {size} x {size}")
            found[str(size)] = _fastest(torch.randn(size, size, device=device).to(dtype))
            if found[str(size)] >= _LONG:
                break
        return found

    return ExaminationStep(name="rank speed", orders=orders_with_devices, measure=measure, judge=judge_speed)


def judge_speed(seconds: Mapping[int, Mapping[str, float]]) -> list[Finding]:
    """Name the ranks that are more than 10 % slower than the median, at the largest size that all have."""
    if len(seconds) < 2:
        return []
    size = max(int(each) for each in set.intersection(*(set(of) for of in seconds.values())))
    times = {rank: each[str(size)] for rank, each in seconds.items()}
    usual, slowest = median(times.values()), max(times, key=lambda rank: times[rank])
    what, percent = f"a product of {size} x {size}", f"{100 * (times[slowest] / usual - 1):.0f} %"
    slow = sorted(rank for rank, each in times.items() if each > _SLOWER * usual)
    if not slow:
        most = f"the slowest of {len(times)} ranks, {slowest}, is {percent} over the median"
        return [Finding.ok("rank speed", f"{what} in {1e3 * usual:.2f} ms; {most}")]
    text = (
        f"{rank_names(slow)}: {what} takes {1e3 * times[slowest]:.2f} ms on rank {slowest}, "
        f"{percent} over the median of {len(times)} ranks, {1e3 * usual:.2f} ms"
    )
    remedy = "all ranks wait for the slowest: look at its clocks, temperature, power limit, other processes"
    return [Finding.look("rank speed", text, remedy, slow)]


def _fastest(matrix: torch.Tensor) -> float:
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < _LEAST or time.perf_counter() - begun < _TIME:
        synchronize(matrix.device)
        started = time.perf_counter()
        matrix @ matrix
        synchronize(matrix.device)
        times.append(time.perf_counter() - started)
    return min(times[1:])  # the first chooses an algorithm
