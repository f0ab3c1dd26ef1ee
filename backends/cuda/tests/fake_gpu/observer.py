"""Sees every operation of the rank: collectives, storages on the device, and where the host waits for the device."""

from __future__ import annotations

import weakref
from collections import defaultdict

import torch
from torch._C._distributed_c10d import FakeWork
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from fake_gpu.waits import caller, waits

ALLOCATION = 512
"""Bytes that torch's caching allocator rounds up to (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""

UNKNOWN_SHAPE = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal", "bincount"}
"""Operations whose result's shape or value the host waits for."""


class Observer(TorchDispatchMode):
    """Counts from one `take` to the next; entered inside of the fake mode, so that it sees operations first.

    Attributes:
        live: bytes of living storages on the device.
        peak: the most there were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._collectives: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self.faults: list[str] = []

    def take(self) -> dict[str, object]:
        """Return collectives ("operation group": [calls, bytes]), host waits and peak bytes since the last call."""
        taken = {"collectives": dict(self._collectives), "waits": waits.take(), "peak": self.peak}
        self._collectives.clear()
        self.peak = self.live
        return taken

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function._schema.name
        if function.namespace == "c10d":
            return self._collective(function, args, kwargs)
        if name == "aten::_local_scalar_dense":
            return self._read(function, args[0])
        if name.removeprefix("aten::") in UNKNOWN_SHAPE and any(map(_on_device, args)):
            waits.note(name.removeprefix("aten::"))
        if _writes_by_mask(name, args):
            waits.note("write by a mask")
        if _crosses(name, args, kwargs):
            waits.note("copy between host and device")
        out = function(*args, **kwargs)
        for tensor in tree_iter(out):
            self._hold(tensor)
        return out

    def _read(self, function, tensor):
        """Return the one value of a tensor; a constant of the host is known."""
        if _on_device(tensor):
            waits.note("item")
            return _value(tensor)
        try:
            return function(tensor)
        except DataDependentOutputException:
            return _value(tensor)

    def _hold(self, tensor) -> None:
        if not _on_device(tensor):
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            size = self._sizes[key] = -(-storage.nbytes() // ALLOCATION) * ALLOCATION
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.live -= self._sizes.pop(key, 0)

    def _collective(self, function, args, kwargs):
        name = function._schema.name.removeprefix("c10d::").strip("_")
        group = next(ProcessGroup.unbox(arg) for arg in args if isinstance(arg, torch.ScriptObject) and _is_group(arg))
        tensors = [tensor for tensor in tree_iter(args) if isinstance(tensor, torch.Tensor)]
        for tensor in tensors:
            if tensor.device.type != "cuda" and "barrier" not in name:
                self.faults.append(f"{name} of a tensor on {tensor.device} in {caller()}")
        count = self._collectives[f"{name} {group.group_desc}"]
        count[0] += 1
        count[1] += max((_bytes(arg) for arg in args), default=0)
        return _answer(function, args)


def _answer(function, args):
    """Return what the operation returns, for collectives that are done at once."""
    results = []
    for result in function._schema.returns:
        kind = str(result.type)
        results.append(FakeWork().boxed() if "Work" in kind else args[0])
    return tuple(results) if len(results) > 1 else results[0] if results else None


def _is_group(value) -> bool:
    return "ProcessGroup" in str(value._type())


def _on_device(value) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def _bytes(value) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in tree_iter(value) if isinstance(tensor, torch.Tensor))


def _writes_by_mask(name: str, args) -> bool:
    """Return whether values are written by a mask, whose entries torch counts on the host; a single value is filled."""
    if name not in {"aten::index_put", "aten::index_put_"} or args[2].numel() == 1:
        return False
    return any(_on_device(index) and index.dtype is torch.bool for index in args[1])


def _crosses(name: str, args, kwargs) -> bool:
    """Return whether the host waits for a copy between host and device."""
    if name == "aten::_to_copy" and kwargs.get("device") is not None:
        return kwargs["device"].type != args[0].device.type and not kwargs.get("non_blocking")
    if name == "aten::copy_":
        blocking = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
        return isinstance(args[1], torch.Tensor) and args[0].device.type != args[1].device.type and blocking
    return False


def _value(tensor):
    """Return a value that leaves the step as it is: no overflow on the device, generators on the host as they were."""
    if tensor.dtype is torch.bool:
        return tensor.device.type == "cpu"
    return 0.0 if tensor.is_floating_point() else 0
