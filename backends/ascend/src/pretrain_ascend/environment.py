"""Environment variables of a rank: HCCL's timeouts, memory, dispatch, determinism; variables for all hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
