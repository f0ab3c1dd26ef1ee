"""Hooks of the cuda backend. Each operation has a file of its own, which is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from pretrain.plugins import hookimpl

if TYPE_CHECKING:
    from pretrain.plugins.backend import Backend
    from pretrain.plugins.offer import Answer
    from pretrain.plugins.requests import (
        ActivationRequest,
        AttentionRequest,
        BiasDropoutAddRequest,
        CollectivesRequest,
        CrossEntropyRequest,
        LinearRequest,
        NormRequest,
        OptimizerRequest,
        Request,
        RotaryRequest,
        SoftmaxRequest,
    )


@hookimpl
def pretrain_backend() -> Backend:
    """The GPUs of this machine."""
    return cast("Backend", import_module("pretrain_cuda.backend").CudaBackend())


@hookimpl
def pretrain_attention(request: AttentionRequest) -> Answer:
    """flash-attn, torch's own flash attention, Transformer Engine's, Triton's triangle."""
    return _answers("attention", request)


@hookimpl
def pretrain_softmax(request: SoftmaxRequest) -> Answer:
    """Triton's, and the extension modules of apex and Megatron-LM."""
    return _answers("softmax", request)


@hookimpl
def pretrain_norm(request: NormRequest) -> Answer:
    """apex's, Triton's, torch's."""
    return _answers("norm", request)


@hookimpl
def pretrain_rotary(request: RotaryRequest) -> Answer:
    """Triton's."""
    return _answers("rotary", request)


@hookimpl
def pretrain_activation(request: ActivationRequest) -> Answer:
    """Triton's."""
    return _answers("activation", request)


@hookimpl
def pretrain_bias_dropout_add(request: BiasDropoutAddRequest) -> Answer:
    """Triton's."""
    return _answers("bias_dropout_add", request)


@hookimpl
def pretrain_cross_entropy(request: CrossEntropyRequest) -> Answer:
    """Triton's."""
    return _answers("cross_entropy", request)


@hookimpl
def pretrain_linear(request: LinearRequest) -> Answer:
    """The reference's, with the weight gradient added in the product where apex's extension is there."""
    return _answers("linear", request)


@hookimpl
def pretrain_optimizer(request: OptimizerRequest) -> Answer:
    """Apex's FusedAdam, torch's fused AdamW."""
    return _answers("optimizer", request)


@hookimpl
def pretrain_collectives(request: CollectivesRequest) -> Answer:
    """NCCL's options."""
    return _answers("collectives", request)


def _answers(operation: str, request: Request) -> Answer:
    return cast("Answer", import_module(f"pretrain_cuda.{operation}").answers(request))
