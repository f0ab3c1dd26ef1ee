"""Environment variables that are set and change a training, or its speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.machine import available_cores
from pretrain.tools.doctor.finding import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretrain.plugins.backend import Backend

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
