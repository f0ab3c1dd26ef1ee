"""Hooks of the cuda backend. Each operation has a file of its own, which is imported on its first request.

moe_permute and router have no hook: the reference serves, and their files say why.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from pretrain.plugins import hookimpl, installed

if TYPE_CHECKING:
    from pretrain.plugins.backend import Backend
    from pretrain.plugins.offer import Answer
    from pretrain.plugins.requests import (
        ActivationRequest,
        AttentionRequest,
        BiasDropoutAddRequest,
        CollectivesRequest,
        CrossEntropyRequest,
        GroupedLinearRequest,
        LinearRequest,
        NormRequest,
        OptimizerRequest,
        Request,
        RotaryRequest,
        SoftmaxRequest,
    )

CONTRACT = (1, 4)
"""Kernels have stand-ins, the device has figures, and requests have roles."""


@hookimpl
def pretrain_backend() -> Backend:
    """The GPUs of this machine."""
    return cast("Backend", import_module("pretrain_cuda.backend").CudaBackend())


@hookimpl
def pretrain_attention(request: AttentionRequest) -> Answer:
    """flash-attn, torch's own flash attention, Transformer Engine's, Triton's triangle."""
    return _answers(request)


@hookimpl
def pretrain_softmax(request: SoftmaxRequest) -> Answer:
    """A Triton kernel, and the extension modules of apex and Megatron-LM."""
    return _answers(request)


@hookimpl
def pretrain_norm(request: NormRequest) -> Answer:
    """Kernels of apex, Triton and torch."""
    return _answers(request)


@hookimpl
def pretrain_rotary(request: RotaryRequest) -> Answer:
    """A Triton kernel."""
    return _answers(request)


@hookimpl
def pretrain_activation(request: ActivationRequest) -> Answer:
    """A Triton kernel."""
    return _answers(request)


@hookimpl
def pretrain_bias_dropout_add(request: BiasDropoutAddRequest) -> Answer:
    """A Triton kernel."""
    return _answers(request)


@hookimpl
def pretrain_cross_entropy(request: CrossEntropyRequest) -> Answer:
    """A Triton kernel."""
    return _answers(request)


@hookimpl
def pretrain_linear(request: LinearRequest) -> Answer:
    """The reference's, with torch's matmuls in fp8, or apex's that adds to the main gradient."""
    return _answers(request)


@hookimpl
def pretrain_grouped_linear(request: GroupedLinearRequest) -> Answer:
    """A grouped matmul, torch's."""
    return _answers(request)


@hookimpl
def pretrain_optimizer(request: OptimizerRequest) -> Answer:
    """Apex's FusedAdam, torch's fused AdamW."""
    return _answers(request)


@hookimpl
def pretrain_collectives(request: CollectivesRequest) -> Answer:
    """NCCL's options."""
    return _answers(request)


def _answers(request: Request) -> Answer:
    return installed.answers("pretrain_cuda", request)
