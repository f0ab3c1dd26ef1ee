"""The backend `abacus`, as written from docs/writing-a-backend.md alone."""

from importlib.util import find_spec

import torch
from torch import Tensor

from pretrain.plugins import hookimpl
from pretrain.plugins.backend import Available, Backend, PointToPoint, Unavailable
from pretrain.plugins.offer import Answer, offer_unless
from pretrain.plugins.requests import NormRequest


class AbacusBackend(Backend):
    name = "abacus"
    device_type = "abacus"
    process_group = "gloo"

    def availability(self):
        if find_spec("torch_abacus") is None:
            return Unavailable("torch_abacus is not installed", "pip install torch_abacus")
        import torch_abacus  # noqa: F401  makes the device known to torch; it opens nothing

        return Available("10 wires")

    def device(self, local_rank):
        return torch.device("abacus", 0)

    def point_to_point(self):
        return PointToPoint(batched=False)  # gloo's

    def pinned_memory(self):
        return False  # the device computes on the host's memory

    def describe(self):
        return {"device": "Abacus"}


@hookimpl
def pretrain_backend() -> Backend:
    return AbacusBackend()


@hookimpl
def pretrain_norm(request: NormRequest) -> Answer:
    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        wide = x.float()
        centred = wide - wide.mean(-1, keepdim=True)
        normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + request.epsilon)
        return (normed * weight.float() + bias.float()).to(x.dtype)

    fault = "" if request.kind == "LayerNorm" else f"kind {request.kind}, only LayerNorm"
    fault = fault or ("float64, which it would round" if request.dtype == torch.float64 else "")
    return offer_unless(fault, name="beads", build=lambda built: layer_norm)
