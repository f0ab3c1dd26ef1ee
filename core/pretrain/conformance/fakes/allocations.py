"""Memory that torch's operations allocate, by the storages of their results: on any device, and of fake tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BLOCK = 512
"""Bytes to which the allocators of CUDA and of Ascend round a tensor up (kMinBlockSize in c10/cuda)."""


def rounded(size: int) -> int:
    """Return the bytes that an allocator takes for a tensor."""
    return -(-size // BLOCK) * BLOCK


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """Context in which storages are counted that did not exist before.

    What an operation allocates and frees itself is not seen.

    Attributes:
        peak: most bytes at a time, each storage rounded up.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation of torch, and count its results."""
        result = func(*args, **(kwargs or {}))
        self._known = {key: entry for key, entry in self._known.items() if not _is_freed(entry[0])}
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, torch.Tensor):
                self._note(x, counted=False)
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self._note(x, counted=True)
        self.peak = max(self.peak, sum(size for _, size in self._known.values()))
        return result

    def _note(self, x: torch.Tensor, *, counted: bool) -> None:
        storage = x.untyped_storage()
        reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        if reference.cdata not in self._known:
            self._known[reference.cdata] = (reference, rounded(storage.nbytes()) if counted else 0)


def _is_freed(storage: StorageWeakRef) -> bool:
    return bool(storage.expired())  # type: ignore[no-untyped-call]
