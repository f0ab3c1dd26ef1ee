"""Options of megatron-core's process groups, from the backend instead of from NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pretrain.plugins.signatures import ProcessGroupOptionsFn


def install(options: ProcessGroupOptionsFn) -> None:
    """Let `initialize_model_parallel` ask the negotiated function for every group's options.

    parallel_state.py 152 builds `ProcessGroupNCCL.Options` by itself, for NCCL alone.
    """
    from megatron.core import parallel_state  # noqa: PLC0415  after the bridge

    def options_of(pg_name: str, nccl_comm_cfgs: object) -> Any | None:  # noqa: ARG001  megatron-core's signature
        return options(pg_name)

    parallel_state.get_nccl_options = options_of
