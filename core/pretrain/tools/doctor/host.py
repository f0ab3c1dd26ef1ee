"""Checks software and host: versions, open files, processes, shared and locked memory, environment variables."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from pretrain.launch.open_files import is_below, open_files_needed
from pretrain.machine import available_cores
from pretrain.plugins.backend import Remark
from pretrain.plugins.host.members import ask
from pretrain.tools.doctor.finding import Finding, Verdict, is_ok

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pretrain.launch.world import World
    from pretrain.plugins.backend import Backend
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe


GIB = 2**30
SHM = Path("/dev/shm")  # noqa: S108  its size is looked at, nothing is written
CGROUP = Path("/sys/fs/cgroup")
MEMORY = Path("/proc/meminfo")
OWN_GROUP = Path("/proc/self/cgroup")
THREADS = "OMP_NUM_THREADS"
PROCESSES_OF_RANK = 512
"""Processes and threads that a rank is assumed to need: threads of matmuls, of communication and of data workers."""
SHARED, LEAST_SHARED = GIB, 16 * 2**20
"""Bytes of /dev/shm, through which a node's ranks and data workers exchange tensors; Docker gives 64 MiB."""


def examine_limits(recipe: Recipe, world: World) -> Iterator[Finding]:
    """Yield a finding for each limit of this process and of its machine."""
    yield _open_files(world)
    yield _processes(world)
    if SHM.is_dir():
        yield _shared_memory(world)
    zero = recipe.engine.zero
    offloads = {zero.offload_optimizer.device, zero.offload_param.device} != {"none"}
    if world.local_world_size < world.world_size or offloads:
        yield _locked_memory()


def _open_files(world: World) -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # a run raises its soft limit to this one
    needed = open_files_needed(world.world_size)
    text = f"{_shown(hard)} open files allowed, about {needed} needed by a rank of {world.world_size}"
    if not is_below(hard, needed):
        return Finding.ok("open files", text)
    remedy = "Raise the hard limit in /etc/security/limits.conf, or by the container's --ulimit nofile, on every node."
    return Finding.look("open files", text, remedy)


def _processes(world: World) -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    needed = PROCESSES_OF_RANK * world.local_world_size
    group = _limit(CGROUP, "pids")
    left = None if group is None else group[0] - group[1]
    allowed = soft if left is None or is_below(soft, left) else left
    text = f"{_shown(allowed)} processes and threads allowed, about {needed} needed by this node's ranks"
    if not is_below(allowed, needed):
        return Finding.ok("processes", text)
    remedy = "Raise ulimit -u, or the container's --pids-limit."
    return Finding.look("processes", text, remedy)


def _limit(group: Path, name: str) -> tuple[int, int] | None:
    """Return the limit and the present use of a control group (version 2); None without a limit."""
    try:
        most, now = ((group / f"{name}.{kind}").read_text().strip() for kind in ("max", "current"))
    except OSError:
        return None
    return (int(most), int(now)) if most.isdigit() and now.isdigit() else None


def _shared_memory(world: World) -> Finding:
    found = os.statvfs(SHM)
    free, total = (blocks * found.f_frsize for blocks in (found.f_bavail, found.f_blocks))
    text = f"{SHM}: {free / GIB:.1f} of {total / GIB:.1f} GiB free"
    remedy = "Enlarge it (docker run --shm-size=16g or --ipc=host), or remove what ended processes left there."
    if free < LEAST_SHARED:
        return Finding.wrong("shared memory", text, remedy)
    if free < SHARED and world.local_world_size > 1:
        return Finding.look("shared memory", text, remedy)
    return Finding.ok("shared memory", text)


def _locked_memory() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Finding.ok("locked memory", "unlimited")
    text = f"{soft / 2**20:.0f} MiB may be locked; RDMA between nodes and offloaded states lock their buffers"
    remedy = "Set ulimit -l unlimited, or the container's --ulimit memlock=-1, on every node."
    return Finding.look("locked memory", text, remedy)


def _shown(limit: int) -> str:
    return "any number of" if limit == resource.RLIM_INFINITY else str(limit)


def free_host_memory() -> tuple[int, int]:
    """Return free and total bytes: the machine's, or those of the tightest control group (a container's, a job's)."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    kilobytes = _fields(MEMORY, ":").get("MemAvailable", "").split()
    rooms = [(int(kilobytes[0]) * 1024 if kilobytes else total // 2, total), *_of_groups()]
    return min(free for free, _ in rooms), min(total for _, total in rooms)


def _of_groups() -> Iterator[tuple[int, int]]:
    """Yield free and allowed bytes of this process's control groups that have a limit, up to the root."""
    own = _fields(OWN_GROUP, "::").get("0", "/").strip().lstrip("/")
    group = CGROUP if ".." in own else CGROUP / own
    for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(CGROUP))):
        if limit := _limit(folder, "memory"):
            most, now = limit
            # what was read from files counts as used, and is dropped when memory is needed
            dropped = _fields(folder / "memory.stat", " ").get("inactive_file", "0").strip()
            used = now - (int(dropped) if dropped.isdigit() else 0)
            yield max(0, most - max(0, used)), most


def _fields(file: Path, separator: str) -> dict[str, str]:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split(separator, 1) for line in lines if separator in line)


EFFECTS = {
    "MKL_NUM_THREADS": "sets the threads of MKL's matmuls on the host, instead of OMP_NUM_THREADS",
    "PYTHONHASHSEED": "fixes the order of sets, which otherwise differs in every process",
    "PYTORCH_JIT": "0 switches off torch's compiled functions; slower",
    "TORCHDYNAMO_DISABLE": "1 switches off kernels.compile",
    "TORCH_COMPILE_DISABLE": "1 switches off kernels.compile",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL checks every collective on all ranks; slower",
    "TORCH_SHOW_CPP_STACKTRACES": "makes error messages longer",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "compiled kernels are chosen by their time, which differs between runs",
    "PYTORCH_ALLOC_CONF": "sets torch's allocator of device memory; replaces the backend's own setting",
    "GLOO_SOCKET_IFNAME": "gloo's network interface; a wrong one hangs or fails at the start",
    "PYTHONOPTIMIZE": "skips assert statements, in libraries too",
    "PYTHONMALLOC": "allocator of Python's objects; debug is slower",
    "LD_PRELOAD": "loads libraries that replace functions of others, such as an allocator",
}
"""Variable -> its effect. Those of a device's libraries are `Backend.effective_variables`."""


def examine_variables(backend: Backend, given: Mapping[str, str], local_world_size: int) -> Iterator[Finding]:
    """Yield a finding for each variable that is set, or one if none is."""
    effects = EFFECTS | dict(backend.effective_variables)
    check, names = "environment", [name for name in sorted(effects) if given.get(name)]
    found = [Finding.look(check, f"{name}={given[name]}: {effects[name]}") for name in names]
    threads, share = given.get(THREADS), max(1, available_cores() // local_world_size)
    if threads and threads != str(share):
        text = f"{THREADS}={threads} threads for matmuls on the host; this rank's share of the cores is {share}"
        # torchrun sets 1 where nothing is set, srun and mpirun nothing: only an exported number holds with all of them
        remedy = f"Run export {THREADS}={share} before the command that starts the ranks, on every node."
        found.append(Finding.look(check, text, remedy))
    none = f"none of {len(effects) + 1} variables that change a training or its speed is set"
    yield from found or [Finding.ok(check, none)]


PYTHON = ">=3.11,<3.14"
REQUIRED: Mapping[str, str] = {
    "click": ">=8.1.8",
    "gigatoken": ">=0.10,<0.11",
    "megatron-core": "==0.16.1",
    "numpy": ">=1.26",
    "orjson": ">=3.10",
    "packaging": ">=24.2",
    "pluggy": ">=1.6",
    "pydantic": ">=2.11",
    "pyyaml": ">=6.0.2",
    "rich": ">=14.0",
    "safetensors": ">=0.5",
    "tensorboard": ">=2.19",
    "tokenizers": ">=0.21",
    "torch": ">=2.9,<2.16",
    "xxhash": ">=3.5",
    "zstandard": ">=0.23",
}
"""Distribution -> versions that pretrain is tested with: the dependencies of pyproject.toml, which a test compares.
What pip recorded is not asked: a checkout may be newer than its installation."""
DEEPSPEED: Mapping[str, str] = {"deepspeed": ">=0.19.8,<0.20"}
"""The same of the extra `pretrain[deepspeed]`, for recipes of its engine."""
SHOWN = ("torch", "megatron-core", "deepspeed", "numpy")  # also where they are right


def examine_versions(plugins: Plugins, *, uses_deepspeed: bool) -> Iterator[Finding]:
    """Yield a finding for each wrong version, or one if all are right; then the backend's remarks."""
    needed = {**REQUIRED, **(DEEPSPEED if uses_deepspeed else {})}
    own = (_judged(Requirement(f"{name}{allowed}"), "pretrain") for name, allowed in needed.items())
    bad = [finding for finding in (_python(), *own, *_of_plugins(plugins)) if finding is not None]
    if is_ok(bad):
        shown = [f"{name} {installed(name)}" for name in SHOWN if name in needed]
        yield Finding.ok("versions", ", ".join([f"Python {platform.python_version()}", *shown]))
    yield from bad
    remarks: Sequence[Remark] = ask(
        plugins,
        "health",
        "a sequence of Remark",
        lambda given: isinstance(given, Sequence) and all(isinstance(remark, Remark) for remark in given),
    )
    for remark in remarks:
        yield Finding(check=remark.subject, verdict=Verdict(remark.verdict), text=remark.text, remedy=remark.remedy)


def installed(name: str) -> str | None:
    """Return the version of a distribution that pip knows, None without one."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> Finding | None:
    version = platform.python_version()
    if SpecifierSet(PYTHON).contains(version, prereleases=True):
        return None
    remedy = "Create an environment with such a Python and install pretrain in it."
    return Finding.wrong("versions", f"Python {version}; pretrain is tested with {PYTHON}", remedy)


def _judged(requirement: Requirement, by: str, make: Callable[..., Finding] = Finding.wrong) -> Finding | None:
    version, name = installed(requirement.name), requirement.name
    if version is not None and requirement.specifier.contains(version, prereleases=True):
        return None
    given = f"{name} is not installed" if version is None else f"{name} {version} is installed"
    needed = f"{name} {requirement.specifier}".rstrip()
    return make("versions", f"{given}; {by} needs {needed}", f"pip install '{name}{requirement.specifier}'")


def _of_plugins(plugins: Plugins) -> Iterator[Finding | None]:
    for distribution in dict.fromkeys(plugin.installed.distribution for plugin in plugins.members):
        if distribution not in {"", "pretrain"} and installed(distribution) is not None:
            for line in importlib.metadata.requires(distribution) or []:
                with suppress(InvalidRequirement):
                    yield _of_plugin(Requirement(line), distribution)


def _of_plugin(requirement: Requirement, distribution: str) -> Finding | None:
    """Judge a requirement; one of an extra only where its distribution is installed, maybe for something else."""
    marker = requirement.marker
    if marker is None or marker.evaluate({"extra": ""}):
        return _judged(requirement, distribution)
    extras = importlib.metadata.metadata(distribution).get_all("Provides-Extra") or []
    extra = next((name for name in extras if marker.evaluate({"extra": name})), None)
    if extra is None or installed(requirement.name) is None:
        return None
    return _judged(requirement, f"{distribution}[{extra}]", Finding.look)
