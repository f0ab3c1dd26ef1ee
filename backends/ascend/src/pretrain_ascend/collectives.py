"""Options of HCCL's process groups."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins.offer import Offer
from pretrain_ascend import installed

if TYPE_CHECKING:
    from pretrain.plugins.offer import Answer
    from pretrain.plugins.requests import CollectivesRequest

HIGH_PRIORITY = frozenset({"tp", "tp-cp", "tp-dp", "tp-dp-cp"})
"""Groups whose collectives a computation waits for: those of tensor parallelism, by megatron-core's names."""


def answers(request: CollectivesRequest) -> Answer:
    """Return the one kernel; other kinds of process group are not HCCL's."""
    if request.process_group != "hccl":
        return None
    return Offer(name="hccl", build=lambda _: options_of, provider=installed.provider())


def options_of(group: str) -> Any | None:
    """Return `ProcessGroupHCCL.Options` on a stream of high priority for tensor-parallel groups, else None."""
    if group not in HIGH_PRIORITY:
        return None
    options = import_module("torch_npu._C._distributed_c10d").ProcessGroupHCCL.Options()
    options.is_high_priority_stream = True
    return options
