"""Process groups and random generators of this rank."""

from __future__ import annotations

import os
import random
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from torch.distributed.rendezvous import rendezvous

from pretrain.bridge.megatron.optimizer import install_group_options
from pretrain.collectives import join_tree, quiet_gloo
from pretrain.engine.deepspeed import swapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.plugins.backend import Backend
    from pretrain.plugins.signatures import ProcessGroupOptionsFn
    from pretrain.recipe import Recipe


@contextmanager
def joined(backend: Backend, rank: int, world_size: int, timeout_minutes: int) -> Iterator[None]:
    """Join the default process group for a block, and leave all groups after it."""
    join_world(backend, rank, world_size, timeout_minutes)
    try:
        yield
    except BaseException:
        if world_size == 1:  # with more ranks, tearing down would wait for those that have died
            leave()
        raise
    leave()


def join_planned_world(rank: int, world_size: int) -> None:
    """Join a default process group without other processes: its collectives return at once, and move nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415  registers the group's kind

    if not torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "Meta"):  # noqa: SLF001  torch 2.9
        import_module("torch.distributed._tools.fake_collectives")  # what collectives of fake tensors return
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


def join_world(backend: Backend, rank: int, world_size: int, timeout_minutes: int) -> None:
    """Join the default process group of the backend's kind; a world of one needs no address."""
    store = dist.HashStore() if world_size == 1 else _store_of_restart()  # type: ignore[attr-defined]  # torch's stub lacks it
    with quiet_gloo():
        dist.init_process_group(
            backend.process_group,
            init_method=None if store else "env://",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(minutes=timeout_minutes),
        )
    join_tree(timeout_minutes)


def _store_of_restart() -> Any:
    """Return a store without the keys of the ranks before torchrun restarted them; None for torch's own."""
    # The ranks are given the same store, which still holds the old addresses; the launcher made the count equal on all.
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts == "0":
        return None
    store, _, _ = next(iter(rendezvous("env://")))
    return dist.PrefixStore(f"restart {restarts}", store)  # type: ignore[attr-defined]


def make_parallel_groups(recipe: Recipe, options: ProcessGroupOptionsFn) -> None:
    """Divide the world into parallel groups of the device, each with the options of its name."""
    install_group_options(options)
    parallel = recipe.parallel
    with quiet_gloo():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=parallel.tensor_model_parallel_size,
            pipeline_model_parallel_size=parallel.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=parallel.virtual_pipeline_model_parallel_size,
            context_parallel_size=parallel.context_parallel_size,
            expert_model_parallel_size=parallel.expert_model_parallel_size,
            expert_tensor_parallel_size=parallel.expert_tensor_parallel_size,
            distributed_timeout_minutes=parallel.distributed_timeout_minutes,
            create_gloo_process_groups=False,
        )


def data_parallel_rank() -> int:
    """Return this rank's place among those that read other samples."""
    return int(parallel_state.get_data_parallel_rank())


def data_parallel_group() -> dist.ProcessGroup:
    """Return the ranks that hold the same part of the model as this one: data x context parallel."""
    group: dist.ProcessGroup = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return group


def expert_data_parallel_group() -> dist.ProcessGroup:
    """Return the ranks that hold the same experts as this one."""
    group: dist.ProcessGroup = parallel_state.get_expert_data_parallel_group()
    return group


class GroupsOfWeights:
    """The `WeightRanks` of an optimizer, which are megatron-core's groups."""

    def parts(self, *, is_expert: bool) -> dist.ProcessGroup:
        """Return the tensor-parallel ranks, of experts those that share each."""
        group: dist.ProcessGroup = parallel_state.get_tensor_model_parallel_group()
        if is_expert:
            group = parallel_state.get_expert_tensor_parallel_group()
        return group

    def copies(self, *, is_expert: bool) -> dist.ProcessGroup:
        """Return the ranks that hold the same weights as this one."""
        return expert_data_parallel_group() if is_expert else data_parallel_group()


def seed(value: int) -> None:
    """Seed every generator of this rank.

    Ranks of one tensor-parallel group share the default generator (dropout of replicated activations) and differ in
    the model-parallel one (dropout of split activations); stages, data- and context-parallel ranks differ in both.
    """
    stage = parallel_state.get_pipeline_model_parallel_rank()
    value += 100 * stage + 10_007 * parallel_state.get_data_parallel_rank(with_context_parallel=True)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
    model_parallel_cuda_manual_seed(value, force_reset_rng=True)


def leave() -> None:
    """Destroy all groups and remove ZeRO-3's files, so that this process can start another run."""
    swapping.release()
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()
