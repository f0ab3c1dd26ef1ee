"""Options of NCCL's process groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.plugins.offer import Offer

if TYPE_CHECKING:
    from pretrain.plugins.offer import Answer
    from pretrain.plugins.requests import CollectivesRequest

HIGH_PRIORITY = frozenset({"tp", "tp-cp", "tp-dp", "tp-dp-cp"})
"""Groups whose collectives a computation waits for: those of tensor parallelism, by megatron-core's names."""


def answers(request: CollectivesRequest) -> Answer:
    """Return the one kernel; other kinds of process group are not NCCL's."""
    if request.process_group != "nccl":
        return None
    return Offer(name="nccl", build=lambda _: options_of, provider="torch")


def options_of(group: str) -> Any | None:
    """Return `ProcessGroupNCCL.Options` on a stream of high priority for tensor-parallel groups, else None."""
    if group not in HIGH_PRIORITY:
        return None
    from torch.distributed import ProcessGroupNCCL  # noqa: PLC0415  builds without NCCL lack it

    return ProcessGroupNCCL.Options(is_high_priority_stream=True)
