"""Software that an NVIDIA GPU needs: its driver. No device context is opened, since the launcher asks too."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """One line of nvidia-smi."""

    name: str
    driver: str


def has_driver() -> bool:
    """Return whether the driver's library can be loaded."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@functools.cache
def cards() -> tuple[Card, ...]:
    """Return every card of this machine, whether or not CUDA_VISIBLE_DEVICES shows it; none without nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    pairs = [line.rpartition(",") for line in answer.stdout.splitlines() if "," in line]
    return tuple(Card(name.strip(), driver.strip()) for name, _, driver in pairs)
