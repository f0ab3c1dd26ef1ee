"""Checks of each node: its clock against rank 0's, and how fast it reads the token files."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from typing import TYPE_CHECKING, Any

from pretrain.data.token_files.reading import bin_path
from pretrain.tools.doctor.finding import Finding
from pretrain.tools.doctor.ranks.status_board import open_first, prefixed
from pretrain.tools.doctor.ranks.step_sequence import ExaminationStep, taking_part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.ranks.status_board import StatusBoard
    from pretrain.tools.doctor.ranks.step_sequence import Answers

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

    return ExaminationStep(
        name=name, orders=orders, measure=measure, judge=lambda answers: judge_clocks(taking_part(answers))
    )


def nodes_of(board: StatusBoard) -> list[int]:
    """Return the node of every rank, all of which have come."""
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
    if not answers:
        return []
    far = [rank for rank, each in answers.items() if abs(each["offset"][0]) > _FAR]
    worst = max(answers, key=lambda rank: abs(answers[rank]["offset"][0]))
    value, error = answers[worst]["offset"]
    text = (
        f"rank {worst} (host {answers[worst]['host']}) is {abs(value):.3f} s {'behind' if value > 0 else 'ahead of'} "
        f"rank 0, known to {max(error, 1e-4):.4f} s"
    )
    if far:
        remedy = "set the clocks by NTP (chronyd, systemd-timesyncd): logs and times of files cannot be compared"
        return [Finding.look("clocks", text, remedy, sorted(far))]
    others = "no other node" if len(answers) == 1 else f"the other {len(answers) - 1} nodes less"
    return [Finding.ok("clocks", f"{text}; {others}")]


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

    return ExaminationStep(name="token files", measure=measure, judge=lambda answers: judge_speed(taking_part(answers)))


def measured_speed(
    recipe: Recipe, doing: Callable[[str], None], *, most_seconds: float = _MOST_SECONDS
) -> dict[str, Any] | None:
    """Return host and speed of the recipe's largest token file here; None where there is none, or it is too small."""
    prefixes = [recipe.data.path] if recipe.data.path else [part.path for part in recipe.data.blend or ()]
    there = [bin_path(prefix) for prefix in prefixes if bin_path(prefix).is_file()]
    if not there:
        return None
    largest = max(there, key=lambda path: path.stat().st_size)
    doing(f"measure the speed of reading {largest}")
    speed = read_speed(largest, sample_bytes=4 * recipe.model.seq_length, most_seconds=most_seconds)
    return None if speed is None else {"host": socket.gethostname(), **speed}


def judge_speed(speeds: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """Return the finding about the slowest node."""
    if not speeds:
        return []
    slowest = min(speeds, key=lambda rank: speeds[rank]["rate"])
    rate, sample = speeds[slowest]["rate"], max(each["sample"] for each in speeds.values())
    where = f" (slowest of {len(speeds)} nodes: {speeds[slowest]['host']})" if len(speeds) > 1 else ""
    text = f"token files are read at {rate / 1e6:,.0f} MB/s{where}, a sample anywhere in {1e3 * sample:.2f} ms"
    if rate >= _SLOW and sample <= _SLOW_SAMPLE:
        return [Finding.ok("data", text)]
    return [Finding.look("data", text, "copy them to a faster disk; or let more workers read (data.num_workers)")]


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
