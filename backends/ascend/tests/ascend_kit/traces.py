"""One call of a kernel, forward and backward: what came out, and what it kept meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.plugins.offer import Offer
from pretrain_ascend import plugin


@dataclass(frozen=True)
class Trace:
    """Shapes and dtypes of output and gradients; which inputs are kept, and the bytes of each other kept storage."""

    output: tuple
    inputs: tuple
    kept: tuple
    gradients: tuple


def offers(request, device_name="Ascend910B3"):
    """Return the backend's offers for a request of the kit, on a named chip, by name."""
    hook = getattr(plugin, f"pretrain_{request.operation}")
    answers = hook(replace(request, device_type="npu", device_name=device_name))
    listed = answers if isinstance(answers, list) else [answers]
    return {answer.name: answer for answer in listed if isinstance(answer, Offer)}


def trace(kernel, tensors):
    """Call the kernel with tensors, those of a floating dtype as leaves that need a gradient."""
    output, stored, leaves = forward(kernel, tensors)
    own = [leaf.untyped_storage()._cdata for leaf in leaves]
    kept = (storage.nbytes() for address, storage in stored.items() if address not in own)
    output.backward(torch.empty_like(output))
    return Trace(
        output=described(output),
        inputs=tuple(address in stored for address in own),
        kept=tuple(sorted(size for size in kept if size)),
        gradients=tuple(described(leaf.grad) for leaf in leaves if leaf.requires_grad),
    )


def forward(kernel, tensors):
    """Return the output, what is kept as storages by their address, and the inputs."""
    leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
    stored = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        stored[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = kernel(*leaves)
    return output, stored, leaves


def trace_stand_in(offer, tensors):
    """Return the trace of the offer's stand-in, or of the kernel itself where it has none, on fake tensors."""
    with FakeTensorMode():
        like = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
        return trace((offer.fake or offer.build)({}), like)


def described(tensor):
    """Return shape and dtype."""
    return tuple(tensor.shape), tensor.dtype
