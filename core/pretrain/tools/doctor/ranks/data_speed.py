"""Measures how fast each node reads the token files."""

from __future__ import annotations

import os
import random
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.data.token_files.reading import bin_path
from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.ranks.step import ExaminationStep, taking_part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.ranks.status_board import StatusBoard
    from pretrain.tools.doctor.ranks.step import Answers


_MOST_SECONDS = 2.0
_SLOW = 50e6
"""bytes/s of a file read in its order; a single hard disk has 100e6 and more."""
_SLOW_SAMPLE = 0.02
"""Seconds for a sample somewhere in the file; a hard disk's seek takes about 0.01."""


def measured_speed(
    recipe: Recipe, doing: Callable[[str], None], *, most_seconds: float = _MOST_SECONDS
) -> dict[str, Any] | None:
    """Return host and speed of the recipe's largest token file here; None where there is none, or it is too small.

    Args:
        recipe: whose files are read.
        doing: told what is read now.
        most_seconds: that the measurement may take.
    """
    prefixes = [recipe.data.path] if recipe.data.path else [part.path for part in recipe.data.blend or ()]
    there = [bin_path(prefix) for prefix in prefixes if bin_path(prefix).is_file()]
    if not there:
        return None
    largest = max(there, key=lambda path: path.stat().st_size)
    doing(f"measure the speed of reading {largest}")
    speed = read_speed(largest, sample_bytes=4 * recipe.model.seq_length, most_seconds=most_seconds)
    return None if speed is None else {"host": socket.gethostname(), **speed}


def judge_speed(speeds: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """Return the finding about the slowest node.

    Args:
        speeds: what `measured_speed` returned, by rank, without None.
    """
    if not speeds:
        return []
    slowest = min(speeds, key=lambda rank: speeds[rank]["rate"])
    rate, sample = speeds[slowest]["rate"], max(each["sample"] for each in speeds.values())
    where = f" (slowest of {len(speeds)} nodes: {speeds[slowest]['host']})" if len(speeds) > 1 else ""
    text = f"token files are read at {rate / 1e6:,.0f} MB/s{where}, a sample anywhere in {1e3 * sample:.2f} ms"
    if rate >= _SLOW and sample <= _SLOW_SAMPLE:
        return [Finding(check="data", verdict=Verdict.OK, text=text)]
    remedy = "copy them to a faster disk; or let more workers read (data.num_workers)"
    return [Finding(check="data", verdict=Verdict.LOOK, text=text, remedy=remedy)]


@dataclass(frozen=True, slots=True)
class ReadStep(ExaminationStep):
    """Read speed of the token files, once a node."""

    recipe: Recipe
    board: StatusBoard
    name = "token files"

    def measure(self, orders: Any) -> Any:  # noqa: ARG002
        """Read, where the files are there."""
        return None if self.board.world.local_rank else measured_speed(self.recipe, self.board.doing)

    def judge(self, answers: Answers) -> list[Finding]:
        """Compare the ranks."""
        return judge_speed(taking_part(answers))


_CHUNK = 1 << 22
_MOST_BYTES = 1 << 28
_SAMPLES = 64
_LEAST_BYTES = 1 << 24
"""Of a smaller file no speed is told: it is read into memory at once."""


def read_speed(path: Path, *, sample_bytes: int, most_seconds: float) -> dict[str, Any] | None:
    """Return bytes/s of reading a file in its order, and seconds for a sample anywhere; None for a small file.

    The system's own copy of the file in memory is dropped first where it can be (Linux), so that the disk is measured.

    Args:
        path: of the file.
        sample_bytes: read at once.
        most_seconds: for each of the two.
    """
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
        return {"rate": rate, "sample": _sample_time(file, size, sample_bytes, most_seconds)}
    finally:
        os.close(file)


def _sample_time(file: int, size: int, sample_bytes: int, most_seconds: float) -> float:
    places = random.Random(0)  # noqa: S311  places in a file
    begun, samples = time.perf_counter(), 0
    while samples < _SAMPLES and time.perf_counter() - begun < most_seconds:
        os.pread(file, sample_bytes, places.randrange(size))
        samples += 1
    return (time.perf_counter() - begun) / samples


def _forget(file: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
