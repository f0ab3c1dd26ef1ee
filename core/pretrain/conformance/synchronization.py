"""Detection of host synchronization: operators that make the host wait for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Sequence


aten = torch.ops.aten

WAITS = frozenset(
    {
        aten._local_scalar_dense,  # noqa: SLF001  .item(), float(), `if tensor:`
        aten.equal,
        aten.is_nonzero,
        aten.masked_select,
        aten.nonzero,
        aten.unique_dim,
        aten._unique2,  # noqa: SLF001
    }
)
"""Operators whose result, or its size, the host must know before it continues."""

INDEXED_WRITES = frozenset({aten.index_put, aten.index_put_})


class NoSynchronization(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode in which an operator that makes the host wait for the device raises AssertionError.

    It works on the CPU too, where nothing waits, so that a kernel is tested without a device. It sees torch's
    operators, forward and backward, but not the calls that a library makes itself.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by torch for every operator."""
        kwargs = kwargs or {}
        if func.overloadpacket in WAITS or _reads_back(func, args, kwargs) or _counts_a_mask(func, args):
            msg = f"{func} makes the host wait for the device; a kernel uses no .item() and no branch on a value"
            raise AssertionError(msg)
        return func(*args, **kwargs)


def _reads_back(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Say whether a tensor of a device is copied to the host."""
    if func.overloadpacket is aten._to_copy:  # noqa: SLF001
        device = kwargs.get("device")
        return device is not None and torch.device(device).type == "cpu" and args[0].device.type != "cpu"
    return func.overloadpacket is aten.copy_ and args[0].device.type == "cpu" and args[1].device.type != "cpu"


def _counts_a_mask(func: Any, args: tuple[Any, ...]) -> bool:
    """Say whether a tensor is indexed by a mask, whose values decide how many entries are read or written.

    Writing one value to all of them does not count: torch then uses masked_fill.
    """
    if func.overloadpacket in INDEXED_WRITES and args[2].numel() == 1:
        return False
    reads_or_writes = func.overloadpacket is aten.index or func.overloadpacket in INDEXED_WRITES
    return reads_or_writes and any(x is not None and x.dtype is torch.bool for x in args[1])
