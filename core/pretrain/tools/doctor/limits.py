"""Limits of the operating system: open files, processes, shared and locked memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.tools.doctor.finding import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.launch.world import World
    from pretrain.recipe import Recipe

GIB = 2**30

FILES_OF_RANK, FILES_OF_PEER = 512, 16
"""Open files that a rank is assumed to need: libraries, token files and pipes of its workers; and, for every other
rank, the connections of the process groups (world, tensor, pipeline, data, embedding, each of a device and a host)."""

USUAL_FILES = 65536
"""Open files to ask for: what servers are usually set to; more where the ranks need more."""

PROCESSES_OF_RANK = 512
"""Processes and threads that a rank is assumed to need: threads of matmuls, of communication and of data workers."""

SHARED, LEAST_SHARED = GIB, 16 * 2**20
"""Bytes of /dev/shm, through which a node's ranks and data workers exchange tensors; Docker gives 64 MiB."""

SHM = Path("/dev/shm")  # noqa: S108  its size is looked at, nothing is written
CGROUP = Path("/sys/fs/cgroup")


def examine_limits(recipe: Recipe, world: World) -> Iterator[Finding]:
    """Yield a finding for each limit of this process and of its machine.

    Args:
        recipe: whose weights or optimizer states may be in host memory.
        world: this rank's place.
    """
    yield _open_files(world)
    yield _processes(world)
    if SHM.is_dir():
        yield _shared_memory(world)
    if world.local_world_size < world.world_size or _offloads(recipe):
        yield _locked_memory()


def _offloads(recipe: Recipe) -> bool:
    zero = recipe.engine.zero
    return any(section.device != "none" for section in (zero.offload_optimizer, zero.offload_param))


def _open_files(world: World) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES_OF_RANK + FILES_OF_PEER * world.world_size
    text = f"{_shown(soft)} open files allowed, about {needed} needed by a rank of {world.world_size}"
    if not _is_below(soft, needed):
        return Finding(check="open files", verdict=Verdict.OK, text=text)
    wanted = max(needed, USUAL_FILES)
    enough = hard if _is_below(hard, wanted) else wanted
    remedy = f"ulimit -n {enough}, before the command on every node."
    if _is_below(hard, needed):
        remedy = f"Raise the hard limit, {hard}, in /etc/security/limits.conf or the container's options."
    return Finding(check="open files", verdict=Verdict.LOOK, text=text, remedy=remedy)


def _processes(world: World) -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    needed = PROCESSES_OF_RANK * world.local_world_size
    group = _processes_of_cgroup()
    allowed = soft if group is None or _is_below(soft, group) else group
    text = f"{_shown(allowed)} processes and threads allowed, about {needed} needed by this node's ranks"
    if not _is_below(allowed, needed):
        return Finding(check="processes", verdict=Verdict.OK, text=text)
    remedy = "ulimit -u, or the container's limit of processes (--pids-limit), decides; raise it."
    return Finding(check="processes", verdict=Verdict.LOOK, text=text, remedy=remedy)


def _processes_of_cgroup() -> int | None:
    """Return what the container still allows; None without a limit."""
    try:
        most, now = ((CGROUP / f"pids.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return None
    return int(most) - int(now) if most.isdigit() and now.isdigit() else None


def _shared_memory(world: World) -> Finding:
    found = os.statvfs(SHM)
    free, total = (blocks * found.f_frsize for blocks in (found.f_bavail, found.f_blocks))
    text = f"{SHM}: {free / GIB:.1f} of {total / GIB:.1f} GiB free"
    remedy = "Enlarge it (docker run --shm-size=16g or --ipc=host), or remove what ended processes left there."
    if free < LEAST_SHARED:
        return Finding(check="shared memory", verdict=Verdict.WRONG, text=text, remedy=remedy)
    if free < SHARED and world.local_world_size > 1:
        return Finding(check="shared memory", verdict=Verdict.LOOK, text=text, remedy=remedy)
    return Finding(check="shared memory", verdict=Verdict.OK, text=text)


def _locked_memory() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Finding(check="locked memory", verdict=Verdict.OK, text="unlimited")
    text = f"{soft / 2**20:.0f} MiB may be locked; RDMA between nodes and offloaded states lock their buffers"
    remedy = "ulimit -l unlimited, or --ulimit memlock=-1 of the container, on every node."
    return Finding(check="locked memory", verdict=Verdict.LOOK, text=text, remedy=remedy)


def _is_below(limit: int, needed: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < needed


def _shown(limit: int) -> str:
    return "any number of" if limit == resource.RLIM_INFINITY else str(limit)
