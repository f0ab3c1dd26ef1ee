"""Take the options of megatron-core's process groups from the backend instead of NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pretrain.plugins.signatures import ProcessGroupOptionsFn


def install(options: ProcessGroupOptionsFn) -> None:
    """Let `initialize_model_parallel` call the negotiated function for every group's options.

    megatron-core's own `get_nccl_options` builds `ProcessGroupNCCL.Options`, which serve only NCCL.
    """
    from megatron.core import parallel_state  # noqa: PLC0415  after the bridge

    def options_of(pg_name: str, nccl_comm_cfgs: object) -> Any | None:  # noqa: ARG001  megatron-core's signature
        return options(pg_name)

    parallel_state.get_nccl_options = options_of
