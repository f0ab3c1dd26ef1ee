"""Speed of reading a file from its disk."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

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
