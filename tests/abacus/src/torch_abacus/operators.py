"""Every operator of the device: the CPU's, on the same bytes."""

import torch
from torch.utils import _pytree as pytree

from torch_abacus.storage import DEVICE, HOST, aten, is_ours, on_device, on_host, over, place

LIBRARIES = []


def register():
    """Register with torch's dispatcher; the libraries must outlive their operators."""
    everything, ours = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    everything.fallback(compute, "PrivateUse1")
    for name, function in OWN.items():
        ours.impl(name, function, "PrivateUse1")
    LIBRARIES.extend((everything, ours))


class _Call:
    """The arguments of one operator on the host, and how its results come back."""

    def __init__(self):
        self.pairs = []  # each tensor of the device, and the CPU's over the same bytes
        self.storages = {}  # the address of the host's storage -> the device's

    def arrive(self, value):
        if is_ours(value):
            host = on_host(value)
            self.pairs.append((value, host))
            self.storages[host.untyped_storage()._cdata] = value.untyped_storage()
            return host
        return HOST if isinstance(value, torch.device) and value.type == DEVICE.type else value

    def leave(self, value):
        if not isinstance(value, torch.Tensor):
            return value
        for ours, host in self.pairs:
            if host is value:  # written in place, and returned
                return ours
        return on_device(value, self.storages.get(value.untyped_storage()._cdata))

    def follow(self):
        """Update the device's tensors whose host tensors an operator resized, or gave another storage."""
        for ours, host in self.pairs:
            there = host.untyped_storage()
            storage = self.storages.get(there._cdata)
            if storage is None or storage.data_ptr() != there.data_ptr() or storage.nbytes() != there.nbytes():
                storage = over(there)
            elif ours.shape == host.shape and ours.stride() == host.stride():
                continue
            place(ours, storage, host.storage_offset(), host.size(), host.stride())


def compute(operator, *args, **kwargs):
    """Compute any operator on the host's view of its arguments."""
    call = _Call()
    args, kwargs = pytree.tree_map(call.arrive, (args, kwargs))
    if kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False  # of a tensor on the device
    result = operator(*args, **kwargs)
    if operator._schema.is_mutable:
        call.follow()
    return pytree.tree_map(call.leave, result)


def _empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return on_device(aten.empty.memory_format(size, dtype=dtype, device=HOST, memory_format=memory_format))


def _empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    return on_device(aten.empty_strided.default(size, stride, dtype=dtype, device=HOST))


def _copy_from(source, target, non_blocking=False):
    there, here = (on_host(tensor) if is_ours(tensor) else tensor for tensor in (target, source))
    there.copy_(here)
    return target


def _to_copy(tensor, *, device=None, non_blocking=False, **options):
    device = tensor.device if device is None else device
    host = aten._to_copy(on_host(tensor) if is_ours(tensor) else tensor, device=HOST, **options)
    return on_device(host) if device.type == DEVICE.type else host.to(device)


def _set_tensor(tensor, source):
    return place(tensor, source.untyped_storage(), source.storage_offset(), source.size(), source.stride())


def _set_storage(tensor, storage):
    return place(tensor, storage, 0, [storage.nbytes() // tensor.element_size()], [1])


OWN = {
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "_copy_from": _copy_from,
    "_to_copy": _to_copy,
    "set_.source_Storage_storage_offset": place,
    "set_.source_Storage": _set_storage,
    "set_.source_Tensor": _set_tensor,
    "record_stream": lambda tensor, stream: None,  # everything is done when it is called
}
