"""Options of NCCL's process groups, and the collectives that were called lately."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from pretrain.plugins.collective_record import collectives_of
from pretrain.plugins.offer import Offer

if TYPE_CHECKING:
    from pretrain.plugins.collective_record import CalledCollective
    from pretrain.plugins.offer import Answer
    from pretrain.plugins.requests import CollectivesRequest

HIGH_PRIORITY = frozenset({"tp", "tp_cp", "tp_dp", "tp_dp_cp"})
"""Groups whose collectives a computation waits for: those of tensor parallelism, by the names that megatron-core 0.16.1
asks options for (parallel_state.py, initialize_model_parallel)."""


def answers(request: CollectivesRequest) -> Answer:
    """Return NCCL's options; None for process groups of another kind."""
    if request.process_group != "nccl":
        return None
    return Offer(name="nccl", build=lambda _: options_of, provider="torch")


def options_of(group: str) -> Any | None:
    """Return `ProcessGroupNCCL.Options` on a stream of high priority for tensor-parallel groups, else None."""
    if group not in HIGH_PRIORITY:
        return None
    from torch.distributed import ProcessGroupNCCL  # noqa: PLC0415  builds without NCCL lack it

    return ProcessGroupNCCL.Options(is_high_priority_stream=True)


def of_nccl() -> list[CalledCollective]:
    """Return what torch's recorder of NCCL knows, another one than that of the CPU's libraries; empty without NCCL."""
    from torch._C import _distributed_c10d  # noqa: PLC0415  as above

    dump = getattr(_distributed_c10d, "_dump_nccl_trace", None)
    return [] if dump is None else collectives_of(pickle.loads(dump(True, False, False)))  # noqa: S301  torch's own
