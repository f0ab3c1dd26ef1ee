"""Environment variables of a rank: HCCL's timeouts, memory, dispatch, determinism; variables for all hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain_ascend.collectives import BUFFER_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"

EXPORTED = (
    *("TASK_QUEUE_ENABLE", "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CPU_AFFINITY_CONF", "CLOSE_MATMUL_K_SHIFT"),
    *("ACL_", "ACLNN_", "INF_NAN_MODE_", "MULTI_STREAM_MEMORY_REUSE", "PER_STREAM_QUEUE", "COMBINED_ENABLE"),
    *("P2P_HCCL_BUFFSIZE", "TORCH_HCCL_", "TORCH_NPU_", "ASCEND", "HCCL", "LD_LIBRARY", "PATH"),
)
"""Prefixes of the variables that `--hostfile` sets on all hosts."""

OWN = ("HCCL_IF_IP", VISIBLE)
"""Variables of one host alone: its address, its devices."""

CONNECT = (120, 7200)
"""Seconds: CANN's default of HCCL_CONNECT_TIMEOUT, and the most that it may be."""
EXECUTE = (1836, 17340)
"""Seconds: CANN's default of HCCL_EXEC_TIMEOUT, and the most that a 910A takes."""
_EARLIER, _LATER = 20, 30
"""Seconds by which HCCL times out before torch's watchdog, and events after HCCL (torch_npu: 30)."""


def variables(recipe: Recipe, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set, without those that the user has set.

    Args:
        recipe: of the run.
        given: the environment; some values follow from others that the user has set.
    """
    found = _timeouts(recipe.parallel.distributed_timeout_minutes * 60, given) | _dispatch(given)
    found |= {BUFFER_SIZE: "2000"}  # for the report of a run that hangs; as many as torch's recorder keeps
    if recipe.train.deterministic_mode:
        found |= {"HCCL_DETERMINISTIC": "true", "CLOSE_MATMUL_K_SHIFT": "1"}
    return found


def _timeouts(seconds: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return HCCL's timeouts: torch's where that is longer than CANN's own, and never less than CANN's own.

    HCCL should time out before torch's watchdog ends the process, so that its log names the collective. torch_npu warns
    otherwise (ProcessGroupHCCL's constructor), and where an event is not waited for longer than a collective.
    """
    shortest, longest = CONNECT
    found = {"HCCL_CONNECT_TIMEOUT": str(min(max(seconds, shortest), longest))}
    usual, most = EXECUTE
    execute = str(min(max(seconds - _EARLIER, usual), most))
    asked = given.get("HCCL_EXEC_TIMEOUT", execute)
    if asked.isdigit():  # 0: no timeout
        found["HCCL_EVENT_TIMEOUT"] = str(int(asked) + _LATER) if int(asked) else "0"
    return found | {"HCCL_EXEC_TIMEOUT": execute}


def _dispatch(given: Mapping[str, str]) -> dict[str, str]:
    """Return what Huawei recommends for training: segments that grow, the queue's second level, each rank's own cores.

    Cores are divided by the devices' numbers, which are not the machine's where some devices are hidden.
    """
    found = {"TASK_QUEUE_ENABLE": "2"}
    if "PYTORCH_ALLOC_CONF" not in given:  # both at once are an error of torch_npu's
        found["PYTORCH_NPU_ALLOC_CONF"] = "expandable_segments:True"
    if VISIBLE not in given:
        found["CPU_AFFINITY_CONF"] = "1"
    return found


EFFECTIVE = {
    VISIBLE: "devices that ranks may take, in its order",
    "ASCEND_LAUNCH_BLOCKING": "1 waits for every operator; far slower",
    "ASCEND_GLOBAL_LOG_LEVEL": "0 and 1 write CANN's logs of debugging; slower",
    "ASCEND_SLOG_PRINT_TO_STDOUT": "1 prints CANN's log; slower",
    "TASK_QUEUE_ENABLE": "0 dispatches every operator by itself, 2 is the fastest",
    "PYTORCH_NPU_ALLOC_CONF": "allocator of device memory; our own setting (expandable segments) is left out",
    "MULTI_STREAM_MEMORY_REUSE": "how memory is reused between streams",
    "CPU_AFFINITY_CONF": "cores of each rank; 0 binds none",
    "COMBINED_ENABLE": "1 joins operators that are not contiguous",
    "INF_NAN_MODE_ENABLE": "0 lets fp16 saturate instead of giving inf",
    "INF_NAN_MODE_FORCE_DISABLE": "1 lets fp16 saturate instead of giving inf",
    "CLOSE_MATMUL_K_SHIFT": "1 sums matmuls in one order, which determinism needs",
    "HCCL_DETERMINISTIC": "true reduces in one order; slower",
    "HCCL_ALGO": "HCCL's algorithm, instead of its own choice",
    "HCCL_BUFFSIZE": "MiB of HCCL's buffers in each process group, twice",
    "P2P_HCCL_BUFFSIZE": "MiB of the buffers of point-to-point groups; 0 shares them",
    "HCCL_INTRA_ROCE_ENABLE": "1 sends within a node over RoCE; slower than HCCS",
    "HCCL_INTRA_PCIE_ENABLE": "1 sends within a node over PCIe; slower than HCCS",
    "HCCL_WHITELIST_DISABLE": "1 lets any host join",
    "HCCL_IF_IP": "this host's address; one that is exported to other hosts is wrong there",
    "HCCL_SOCKET_IFNAME": "network interface; a wrong one hangs or fails at the start",
    "HCCL_CONNECT_TIMEOUT": "seconds that ranks wait for each other at the start",
    "HCCL_EXEC_TIMEOUT": "seconds that a collective may take",
    BUFFER_SIZE: "collectives that torch_npu's recorder keeps; 0 switches it off, and hang reports name none",
    "HCCL_OP_EXPANSION_MODE": "where collectives are scheduled: the device's AI cores or its CPUs",
}
"""Variables that change a training or its speed -> their effect: Huawei's environment variables of CANN and HCCL, and
torch_npu's."""
