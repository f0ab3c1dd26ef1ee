"""Steps that merge the ranks' findings, and compare their recipes, kernels, cores, speeds, clocks and token files."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from pretrain.data.token_files.reading import bin_path
from pretrain.errors import StoreError
from pretrain.launch.one_recipe import differing, stated
from pretrain.report.plain_text import rank_names
from pretrain.stores.stored_inputs import local_prefix
from pretrain.tools.doctor.device_speed import timed_matmul
from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.ranks.status_board import open_first, prefixed
from pretrain.tools.doctor.ranks.step_sequence import ExaminationStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

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
    """Return one check's findings; the ok ones of single ranks become one."""
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
    """Return the finding about software or devices that are ok on each rank but differ between ranks."""
    entries = Counter(entry for each in fine for entry in set(each.text.split(", ")))
    different = [entry for entry, count in entries.items() if count < len(fine)]
    make = Finding.wrong if any(entry.startswith(DECISIVE) for entry in different) else Finding.look
    listed = "; ".join(f"{rank_names(each.ranks)}: {each.text}" for each in fine)
    remedy = "Install the same software and use the same kind of device on all nodes."
    return make(fine[0].check, f"differs between ranks. {listed}", remedy)


def own_step(
    own: Sequence[Finding], *, has_device: bool, world_size: int, kernels: Mapping[str, str] | None = None
) -> ExaminationStep:
    """Merge the findings of the ranks' own checks; needs no order of the leader."""
    # `kernels` are operation -> kernel that this rank would take, and its provider; empty where none could be chosen.
    answer = {"findings": [asdict(each) for each in own], "device": has_device, "kernels": dict(kernels or {})}

    def judge(answers: Answers) -> list[Finding]:
        found = merged({rank: each["findings"] for rank, each in answers.items()}, world_size)
        without = [rank for rank, each in answers.items() if not each["device"]]
        if without and world_size > 1:
            text = f"speed and links are not measured: no device on {rank_names(without)}"
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
            remedy = "Install the same versions on every node, or name the kernels in the recipe's section `kernels`."
            yield Finding.wrong(f"kernel {operation}", f"the ranks would use different kernels: {text}", remedy)


def orders_with_devices(known: Mapping[str, Answers]) -> dict[str, Any] | None:
    """Return empty orders; None, which skips the step, unless every rank has its device."""
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
    remedy = f"Allow {needed} cores (srun --cpus-per-task, taskset, docker --cpuset-cpus), or lower data.num_workers."
    return Finding.look("cores", text, remedy)


_SIZES = (256, 512, 1024, 2048, 4096, 8192)
_LONG = 2e-3  # seconds of a matmul that are enough to compare: starting it on a device takes about 1e-5
_TIME = 0.4  # seconds for which matmuls of one size are repeated: the fastest counts, as others only make it slower
_SLOWER = 1.1


def speed_step(board: StatusBoard, device: torch.device | None, dtype: torch.dtype) -> ExaminationStep:
    """A matmul on every rank at once, to find slow ones."""

    def measure(_orders: Any) -> Any:
        assert device is not None  # noqa: S101  every rank has said that it has one
        found: dict[str, float] = {}  # size -> seconds of the fastest matmul
        for size in _SIZES:
            board.doing(f"multiply matrices of {size} x {size}")
            matrix = torch.randn(size, size, device=device).to(dtype)
            _ = matrix @ matrix  # the first chooses an algorithm
            found[str(size)], _ = timed_matmul(matrix, matrix, device, _TIME)
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
    what, percent = f"a matmul of {size} x {size}", f"{100 * (times[slowest] / usual - 1):.0f} %"
    slow = sorted(rank for rank, each in times.items() if each > _SLOWER * usual)
    if not slow:
        most = f"the slowest of {len(times)} ranks, rank {slowest}, takes {percent} longer than the median"
        return [Finding.ok("rank speed", f"{what} takes {1e3 * usual:.2f} ms; {most}")]
    text = (
        f"{rank_names(slow)}: {what} takes {1e3 * times[slowest]:.2f} ms on rank {slowest}, "
        f"{percent} longer than the median of {len(times)} ranks, {1e3 * usual:.2f} ms"
    )
    remedy = "all ranks wait for the slowest: check its clocks, temperature, power limit and other processes"
    return [Finding.look("rank speed", text, remedy, slow)]


_QUESTIONS = 5
_FAR = 1.0  # seconds; logs of nodes cannot be compared beyond it, and a file may seem to come from the future


def clock_step(board: StatusBoard) -> ExaminationStep:
    """Clocks of the nodes against rank 0's, as NTP does, over a store."""
    name, rank = "clocks", board.world.rank

    def orders(_known: Mapping[str, Answers]) -> Any:
        nodes = nodes_of(board)
        others = [nodes.index(node) for node in dict.fromkeys(nodes)][1:]
        return {"ranks": others} if others else None

    def measure(orders: Any) -> Any:
        if rank not in {0, *orders["ranks"]}:
            return None
        board.doing("compare clocks with rank 0")
        store = prefixed(name, open_first(board.world, serves=False))
        if rank:
            return {"host": socket.gethostname(), "offset": ask_time(store, rank)}
        answer_time(store, orders["ranks"], board.doing)
        return None

    return ExaminationStep(name=name, orders=orders, measure=measure, judge=judge_clocks)


def nodes_of(board: StatusBoard) -> list[int]:
    """Return the node of every rank, all of which have connected."""
    marks = board.marks(range(board.world.world_size))
    return [marks[rank].node for rank in sorted(marks)]


def offset_of(asked: float, received: float, answered: float, returned: float) -> tuple[float, float]:
    """Return by how many seconds the other clock is ahead, and the most by which that can be wrong."""
    # Source: RFC 5905, section 8. This clock: the question left at `asked`, the answer came at `returned`. The other
    # clock: the question came at `received`, the answer left at `answered`.
    offset = ((received - asked) + (answered - returned)) / 2
    return offset, ((returned - asked) - (answered - received)) / 2


def ask_time(store: Any, rank: int, now: Callable[[], float] = time.time) -> list[float]:
    """Return offset and error, in seconds, of rank 0's clock; the store is a connection of this thread, which waits."""
    found: list[tuple[float, float]] = []
    for number in range(_QUESTIONS):
        store.get(_key("turn", rank, number))
        asked = now()
        store.set(_key("question", rank, number), "")
        received, answered = json.loads(store.get(_key("answer", rank, number)))
        found.append(offset_of(asked, received, answered, now()))
    offset, error = min(found, key=lambda pair: pair[1])
    return [offset, error]


def answer_time(store: Any, ranks: Sequence[int], doing: Callable[[str], None]) -> None:
    """Answer the questions of the ranks, one after the other, on rank 0."""
    for rank in ranks:
        doing(f"compare clocks with rank {rank}")
        for number in range(_QUESTIONS):
            store.set(_key("turn", rank, number), "")
            store.get(_key("question", rank, number))
            received = time.time()
            store.set(_key("answer", rank, number), json.dumps([received, time.time()]))


def _key(kind: str, rank: int, number: int) -> str:
    return f"clock/{kind}/{rank}/{number}"


def judge_clocks(answers: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """Name the nodes whose clock is more than a second from rank 0's."""
    far = [rank for rank, each in answers.items() if abs(each["offset"][0]) > _FAR]
    worst = max(answers, key=lambda rank: abs(answers[rank]["offset"][0]))
    value, error = answers[worst]["offset"]
    text = (
        f"rank {worst} (host {answers[worst]['host']}) is {abs(value):.3f} s {'behind' if value > 0 else 'ahead of'} "
        f"rank 0, +- {max(error, 1e-4):.4f} s"
    )
    if far:
        remedy = "synchronize the clocks by NTP (chronyd, systemd-timesyncd): logs and file times cannot be compared"
        return [Finding.look("clocks", text, remedy, sorted(far))]
    others = f"; the other {len(answers) - 1} nodes differ less" if len(answers) > 1 else ""
    return [Finding.ok("clocks", text + others)]


_MOST_SECONDS = 2.0
_SLOW = 50e6  # bytes/s of a file read in its order; a single hard disk has 100e6 and more
_SLOW_SAMPLE = 0.02  # seconds for a sample somewhere in the file; a hard disk's seek takes about 0.01
_CHUNK = 1 << 22
_MOST_BYTES = 1 << 28
_SAMPLES = 64
_LEAST_BYTES = 1 << 24  # of a smaller file no speed is told: it is read into memory at once


def read_step(recipe: Recipe, board: StatusBoard) -> ExaminationStep:
    """Read speed of the token files, once a node."""

    def measure(_orders: Any) -> Any:
        return None if board.world.local_rank else measured_speed(recipe, board.doing)

    return ExaminationStep(name="token files", measure=measure, judge=judge_reading)


def measured_speed(
    recipe: Recipe, doing: Callable[[str], None], *, most_seconds: float = _MOST_SECONDS
) -> dict[str, Any] | None:
    """Return host and speed of the recipe's largest token file here; None where there is none, or it is too small."""
    there = []
    for given in recipe.data.token_files:
        with suppress(StoreError):  # the checks of a run's start have said so
            there += [path for path in [bin_path(local_prefix(given))] if path.is_file()]
    if not there:
        return None
    largest = max(there, key=lambda path: path.stat().st_size)
    doing(f"measure the speed of reading {largest}")
    speed = read_speed(largest, sample_bytes=4 * recipe.model.seq_length, most_seconds=most_seconds)
    return None if speed is None else {"host": socket.gethostname(), **speed}


def judge_reading(speeds: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """Return the finding about the slowest node."""
    slowest = min(speeds, key=lambda rank: speeds[rank]["rate"])
    rate, sample = speeds[slowest]["rate"], max(each["sample"] for each in speeds.values())
    where = f" (slowest of {len(speeds)} nodes: {speeds[slowest]['host']})" if len(speeds) > 1 else ""
    text = f"token files are read at {rate / 1e6:,.0f} MB/s{where}, a random sample in {1e3 * sample:.2f} ms"
    if rate >= _SLOW and sample <= _SLOW_SAMPLE:
        return [Finding.ok("data", text)]
    return [Finding.look("data", text, "copy them to a faster disk, or raise data.num_workers")]


def read_speed(path: Path, *, sample_bytes: int, most_seconds: float) -> dict[str, Any] | None:
    """Return bytes/s of reading a file in its order, and seconds for a sample anywhere; None for a small file."""
    # The system's own copy of the file in memory is dropped first where it can be (Linux), so that the disk is
    # measured.
    size = path.stat().st_size
    if size < _LEAST_BYTES:
        return None
    file = os.open(path, os.O_RDONLY)
    try:
        _forget(file)
        begun, done = time.perf_counter(), 0
        while done < min(size, _MOST_BYTES) and time.perf_counter() - begun < most_seconds:
            done += len(os.pread(file, _CHUNK, done))
        rate = done / (time.perf_counter() - begun)
        _forget(file)
        places = random.Random(0)  # noqa: S311  places in a file
        begun, samples = time.perf_counter(), 0
        while samples < _SAMPLES and time.perf_counter() - begun < most_seconds:
            os.pread(file, sample_bytes, places.randrange(size))
            samples += 1
        return {"rate": rate, "sample": (time.perf_counter() - begun) / samples}
    finally:
        os.close(file)


def _forget(file: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
