"""The backend `example`: the CPU under another name, with a layer norm of its own."""

import torch
from torch import Tensor

from pretrain.plugins import hookimpl
from pretrain.plugins.backend import Available, Backend, Memory, PointToPoint
from pretrain.plugins.offer import Answer, Decline, Offer
from pretrain.plugins.requests import NormRequest


class ExampleBackend(Backend):
    name = "example"  # what --backend says; the entry point is called the same
    device_type = "cpu"  # torch's name of the device
    process_group = "gloo"  # torch.distributed's backend for it
    forkable = True  # nothing is opened, and no thread is started, at import

    def availability(self) -> Available:
        return Available(f"{torch.get_num_threads()} threads")

    def device(self, local_rank: int) -> torch.device:
        return torch.device("cpu")

    def memory(self, *, reset_peak: bool = False) -> Memory:
        return Memory(allocated=None, peak=None, total=None)  # torch does not count the CPU's

    def point_to_point(self) -> PointToPoint:
        return PointToPoint(batched=False)  # gloo mixes up several messages to one peer


@hookimpl
def pretrain_backend() -> Backend:
    return ExampleBackend()


@hookimpl
def pretrain_norm(request: NormRequest) -> Answer:
    if request.kind != "LayerNorm":
        return Decline(name="torch", reason=f"kind {request.kind}, only LayerNorm")
    if request.weight_dtype != request.dtype:
        return Decline(name="torch", reason=f"input in {request.dtype}, weights in {request.weight_dtype}")

    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, request.epsilon)

    return Offer(name="torch", build=lambda built: layer_norm, provider=f"torch {torch.__version__}")
