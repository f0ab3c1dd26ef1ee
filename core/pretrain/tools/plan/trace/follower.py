"""Follower of a step: sees every operation on fake tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.tools.plan.trace.work import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pretrain.tools.plan.trace.place import Position
    from pretrain.tools.plan.trace.storages import Storages
    from pretrain.tools.plan.trace.work import Work

_READ = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001  torch's name of `Tensor.item`

_DEVICE = torch.ops.prim.device.default
_COPY = torch.ops.aten._to_copy.default  # noqa: SLF001  torch's name of `Tensor.to`


class Follower(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode to be entered after FakeTensorMode.

    Where the program reads a value of a fake tensor, it is zero: no overflow, nothing to count. torch knows the values
    of tensors that are made of numbers.
    """

    def __init__(self, position: Position, storages: Storages, work: Work) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._position, self._storages, self._work = position, storages, work
        self._begin = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation on fake tensors; follow what it allocates and costs."""
        if func is _READ and isinstance(args[0], FakeTensor) and args[0].constant is None:
            return _zero(args[0].dtype)
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # half of all calls, and slow ones
        output = func(*args, **(kwargs or {}))
        if func is _COPY and (device := (kwargs or {}).get("device")) not in {None, output.device}:
            output = torch.empty(
                output.shape, dtype=output.dtype, device=device
            )  # torch copies known values on the host
        place = self._position.here()
        for tensor in tensors_in(output):
            self._storages.see(tensor, place)
        if place.step:
            self._work.add(place, func, args, output)
        return output

    def begin(self) -> None:
        """Take note of the beginning of a stand-in's pass: `pretrain.plugins.stand_in.Observer`."""
        self._begin = len(self._storages.blocks)

    def end(self, operation: str, read: Iterable[Any], written: Iterable[Any], *, is_backward: bool) -> None:
        """Take note of the end of a stand-in's pass: what it has allocated and freed again was its workspace."""
        self._storages.mark_workspace(self._begin)
        place = self._position.here()
        if place.step:
            self._work.add_stand_in(place, operation, read, written, is_backward=is_backward)


def _zero(dtype: torch.dtype) -> float | bool:
    if dtype is torch.bool:
        return False
    return 0.0 if dtype.is_floating_point else 0
