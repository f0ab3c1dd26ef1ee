"""Random generator states of all ranks in a checkpoint."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.tensor_parallel.random import _get_cuda_rng_state, _set_cuda_rng_state

from pretrain.bridge.megatron import device_type

_OF_DEVICE = {"device", "process_group"}


def layout() -> dict[str, int | str]:
    """Return the layout that generator states depend on: the device, and sizes."""
    return {
        "device": device_type(),
        "process_group": dist.get_backend(),
        "world_size": dist.get_world_size(),
        "tensor_model_parallel_size": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline_model_parallel_size": parallel_state.get_pipeline_model_parallel_world_size(),
        "context_parallel_size": parallel_state.get_context_parallel_world_size(),
    }


def sharded_states() -> ShardedObject:
    """Return this rank's generator states, as one of world-size objects."""
    return ShardedObject("rng", states(), (dist.get_world_size(),), (dist.get_rank(),), replica_id=0)


def changes(saved: dict[str, int | str]) -> list[str]:
    """Return what keeps states of that layout from being restored here: "the layout", "the device"."""
    ours = layout()  # an old checkpoint without a device or a process group is taken to be of this one
    differing = {name for name, value in saved.items() if ours.get(name) != value}
    return ["the layout"] * bool(differing - _OF_DEVICE) + ["the device"] * bool(differing & _OF_DEVICE)


def restore(states: dict[str, Any]) -> None:
    """Set the generators to states that `sharded_states` took."""
    random.setstate(states["python"])
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, keys.numpy().view(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    _set_cuda_rng_state(states["device"])
    get_cuda_rng_tracker().set_states(states["tracker"])


def states() -> dict[str, Any]:
    """Return the states of this rank's generators."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        # A tensor, because torch.load's weights_only refuses arrays.
        "numpy": (name, torch.from_numpy(np.asarray(keys).view(np.int32).copy()), *rest),
        "torch": torch.get_rng_state(),
        "device": _get_cuda_rng_state(),
        "tracker": get_cuda_rng_tracker().get_states(),
    }
