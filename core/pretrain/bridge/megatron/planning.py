"""Process groups and megatron-core for a plan: on fake tensors, in a fake world, in a process that never trains."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


def install() -> None:
    """Give torch's object collectives and megatron-core their answers for fake tensors; call after megatron's bridge.

    * torch.distributed `all_gather_object`, `broadcast_object_list`: read the sizes that they have gathered; in a plan
      all ranks are equal to this one.
    * distributed/param_and_grad_buffer.py `_coalescing_manager`: c10d's coalesced operations run on no fake tensor.
    * tensor_parallel/random.py `CudaRNGStatesTracker.fork`: compares states of generators, by value.
    """
    import megatron.core.distributed.param_and_grad_buffer as buffers  # noqa: PLC0415  after the bridge
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker  # noqa: PLC0415

    dist.all_gather_object = _all_gather_object
    dist.broadcast_object_list = _broadcast_object_list
    buffers._coalescing_manager = _one_by_one  # noqa: SLF001
    CudaRNGStatesTracker.fork = _fork


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:  # noqa: ARG001  torch's signature
    object_list[:] = [obj] * len(object_list)


def _broadcast_object_list(object_list: list[Any], *_args: Any, **_options: Any) -> None: ...


class _Done:
    """Handle of collectives that have been issued one by one."""

    def wait(self) -> None: ...

    def append(self, work: Any) -> None: ...


@contextmanager
def _one_by_one(*_args: Any, **_options: Any) -> Iterator[_Done]:
    yield _Done()


@contextmanager
def _fork(self: Any, name: str = "") -> Iterator[Tensor | None]:  # noqa: ARG001  megatron-core's signature
    yield None
