"""Storage of the device over bytes of the host, and the way between the two."""

import torch

from torch_abacus import runtime

HOST = torch.device("cpu")
DEVICE = torch.device("abacus", 0)

aten = torch.ops.aten
_AS_ON_HOST = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class _Owner:
    """Keeps the bytes of one storage alive, and counts them while it does."""

    def __init__(self, host):
        self.host = host
        self.nbytes = host.nbytes()
        runtime.Bytes.count(self.nbytes)

    def __del__(self):
        runtime.Bytes.count(-self.nbytes)


def is_ours(value):
    return isinstance(value, torch.Tensor) and value.device.type == "abacus"


def over(host):
    """Return a storage of the device over the bytes of a CPU storage, which lives as long as it."""
    storage = torch._C._construct_storage_from_data_pointer(host.data_ptr(), DEVICE, host.nbytes())
    storage.owner = _Owner(host)
    return storage


def place(tensor, storage, offset, size, stride):
    """Let a tensor of the device be these elements of a storage; return it."""
    return aten.set_.source_Storage_storage_offset.redispatch(_AS_ON_HOST, tensor, storage, offset, size, stride)


def on_device(tensor, storage=None):
    """Return a tensor of the device with the elements of a CPU tensor, in place; `storage` is where they are."""
    new = torch._C._acc.create_empty_tensor([0], tensor.dtype)
    storage = over(tensor.untyped_storage()) if storage is None else storage
    return place(new, storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def on_host(tensor):
    """Return a CPU tensor over the same bytes."""
    storage = tensor.untyped_storage()
    # torch.empty and the like are replaced while DeepSpeed's zero.Init builds a model: operators are asked directly.
    if not hasattr(storage, "owner"):  # a tensor without elements
        return aten.empty.memory_format(tensor.shape, dtype=tensor.dtype, device=HOST)
    empty = aten.empty.memory_format([0], dtype=tensor.dtype, device=HOST)
    return empty.set_(storage.owner.host, tensor.storage_offset(), tensor.size(), tensor.stride())
