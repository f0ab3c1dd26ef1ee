"""Checks the host: open files, processes, shared and locked memory, free memory, environment variables."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.machine import available_cores
from pretrain.tools.doctor.finding import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretrain.launch.world import World
    from pretrain.plugins.backend import Backend
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


THREADS = "OMP_NUM_THREADS"

EFFECTS = {
    "MKL_NUM_THREADS": "threads of MKL's matmuls on the host, whatever OMP_NUM_THREADS says",
    "PYTHONHASHSEED": "order of sets: fixed by it, else different in every process",
    "PYTORCH_JIT": "0 switches off torch's compiled functions; slower",
    "TORCHDYNAMO_DISABLE": "1 leaves kernels.compile without an effect",
    "TORCH_COMPILE_DISABLE": "1 leaves kernels.compile without an effect",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL checks every collective on all ranks; slower",
    "TORCH_SHOW_CPP_STACKTRACES": "longer messages of errors",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "compiled kernels are chosen by their time, which differs between runs",
    "PYTORCH_ALLOC_CONF": "torch's allocator of device memory; the backend's own setting is left out",
    "GLOO_SOCKET_IFNAME": "network interface of gloo; a wrong one hangs or fails at the start",
    "PYTHONOPTIMIZE": "checks written as assert are left out, in libraries too",
    "PYTHONMALLOC": "allocator of Python's objects; debug is slower",
    "LD_PRELOAD": "libraries that replace functions of others, such as an allocator",
}
"""Variable -> its effect. Those of a device's libraries are `Backend.effective_variables`."""


def examine_variables(backend: Backend, given: Mapping[str, str], local_world_size: int) -> Iterator[Finding]:
    """Yield a finding for each variable that is set, or one that there is none.

    Args:
        backend: whose libraries read further variables.
        given: the environment, before the backend's own variables are set.
        local_world_size: ranks of this node, which share its cores.
    """
    effects = EFFECTS | dict(backend.effective_variables)
    found = [
        Finding(check="environment", verdict=Verdict.LOOK, text=f"{name}={given[name]}: {effects[name]}")
        for name in sorted(effects)
        if given.get(name)
    ]
    if (threads := _threads(given.get(THREADS, ""), local_world_size)) is not None:
        found.append(threads)
    if not found:
        found.append(Finding(check="environment", verdict=Verdict.OK, text=_nothing(effects)))
    yield from found


def _nothing(effects: Mapping[str, str]) -> str:
    return f"none of {len(effects) + 1} variables that change a training or its speed is set"


def _threads(given: str, local_world_size: int) -> Finding | None:
    """Return the finding of a number of threads other than the rank's share of the cores."""
    share = max(1, available_cores() // local_world_size)
    if not given or given == str(share):
        return None
    text = f"{THREADS}={given}: threads of the host's matmuls; this rank's share of the cores is {share}"
    # torchrun sets 1 where nothing is set, srun and mpirun nothing: only an exported number holds with all of them
    remedy = f"export {THREADS}={share}, before the command that starts the ranks, on every node."
    return Finding(check="environment", verdict=Verdict.LOOK, text=text, remedy=remedy)
