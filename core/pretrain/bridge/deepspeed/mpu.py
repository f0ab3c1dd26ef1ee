"""Adapt megatron-core's `parallel_state` to the `mpu` from which DeepSpeed takes its groups.

DeepSpeed's model-parallel group is the tensor-parallel one: its pipelines are not used here, and with one stage both
are the same. This module must not have `initialize_sequence_parallel`: with it, DeepSpeed 0.19.8 omits the
tensor-parallel ranks from ZeRO-3's norms (DeepSpeedZeroOptimizer_Stage3.__init__).
"""

from __future__ import annotations

from functools import partial

from megatron.core import parallel_state
from torch import distributed as dist

get_model_parallel_rank = parallel_state.get_tensor_model_parallel_rank
get_model_parallel_world_size = parallel_state.get_tensor_model_parallel_world_size
get_model_parallel_group = parallel_state.get_tensor_model_parallel_group

get_tensor_model_parallel_rank = parallel_state.get_tensor_model_parallel_rank
get_tensor_model_parallel_world_size = parallel_state.get_tensor_model_parallel_world_size
get_tensor_model_parallel_group = parallel_state.get_tensor_model_parallel_group
get_tensor_model_parallel_src_rank = parallel_state.get_tensor_model_parallel_src_rank

get_pipeline_model_parallel_rank = parallel_state.get_pipeline_model_parallel_rank
get_pipeline_model_parallel_world_size = parallel_state.get_pipeline_model_parallel_world_size
get_pipeline_model_parallel_group = parallel_state.get_pipeline_model_parallel_group

# What DeepSpeed averages and divides over all ranks with equal weights, also those that share a sequence.
get_data_parallel_rank = partial(parallel_state.get_data_parallel_rank, with_context_parallel=True)
get_data_parallel_world_size = partial(parallel_state.get_data_parallel_world_size, with_context_parallel=True)
get_data_parallel_group = partial(parallel_state.get_data_parallel_group, with_context_parallel=True)


def get_data_parallel_group_ranks() -> list[int]:
    """Return the global ranks of this rank's data-parallel group."""
    return dist.get_process_group_ranks(get_data_parallel_group())
