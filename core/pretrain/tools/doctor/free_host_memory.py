"""Free memory of the host, as far as this process may use it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = Path("/proc/meminfo")
OWN_GROUP = Path("/proc/self/cgroup")


def free_host_memory() -> tuple[int, int]:
    """Return free and total bytes: the machine's, or those of the tightest control group (a container's, a job's)."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    kilobytes = _fields(MEMORY, ":").get("MemAvailable", "").split()
    rooms = [(int(kilobytes[0]) * 1024 if kilobytes else total // 2, total), *_of_groups()]
    return min(free for free, _ in rooms), min(total for _, total in rooms)


def _of_groups() -> Iterator[tuple[int, int]]:
    """Yield free and allowed bytes of this process's control groups (version 2) that have a limit, up to the root."""
    for folder in _groups():
        try:
            most, now = ((folder / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        except OSError:
            continue
        if most.isdigit() and now.isdigit():
            # what was read from files counts as used, and is dropped when memory is needed
            dropped = _fields(folder / "memory.stat", " ").get("inactive_file", "0").strip()
            used = int(now) - (int(dropped) if dropped.isdigit() else 0)
            yield max(0, int(most) - max(0, used)), int(most)


def _groups() -> Iterator[Path]:
    """Yield the folders of this process's group and of those around it; the root where it is outside of that."""
    own = _fields(OWN_GROUP, "::").get("0", "/").strip().lstrip("/")
    folder = CGROUP if ".." in own else CGROUP / own
    yield folder
    yield from (parent for parent in folder.parents if parent.is_relative_to(CGROUP))


def _fields(file: Path, separator: str) -> dict[str, str]:
    """Return the lines of a file of the kernel by their names; none without the file."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split(separator, 1) for line in lines if separator in line)
