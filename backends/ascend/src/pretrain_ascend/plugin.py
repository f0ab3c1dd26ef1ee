"""Hooks of the ascend backend. Each operation has a file of its own, which is imported on its first request.

bias_dropout_add and router have no hook: the reference serves, and their files say why.
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
        CollectivesRequest,
        CrossEntropyRequest,
        GroupedLinearRequest,
        LinearRequest,
        MoePermuteRequest,
        NormRequest,
        OptimizerRequest,
        Request,
        RotaryRequest,
        SoftmaxRequest,
    )

CONTRACT = (1, 4)


@hookimpl
def pretrain_backend() -> Backend:
    """The NPUs of this machine."""
    return cast("Backend", import_module("pretrain_ascend.backend").AscendBackend())


@hookimpl
def pretrain_attention(request: AttentionRequest) -> Answer:
    """CANN's fusion attention, called directly and by torch; the triangle over its fused softmax."""
    return _answers(request)


@hookimpl
def pretrain_softmax(request: SoftmaxRequest) -> Answer:
    """CANN's scaled masked softmax."""
    return _answers(request)


@hookimpl
def pretrain_norm(request: NormRequest) -> Answer:
    """CANN's RMS norm, torch's layer norm."""
    return _answers(request)


@hookimpl
def pretrain_rotary(request: RotaryRequest) -> Answer:
    """CANN's fused rotation."""
    return _answers(request)


@hookimpl
def pretrain_activation(request: ActivationRequest) -> Answer:
    """CANN's SwiGLU, and its GELU in both forms."""
    return _answers(request)


@hookimpl
def pretrain_cross_entropy(request: CrossEntropyRequest) -> Answer:
    """CANN's kernel, for a vocabulary that is not split."""
    return _answers(request)


@hookimpl
def pretrain_linear(request: LinearRequest) -> Answer:
    """None: the reference serves; in fp8 with the reason."""
    return _answers(request)


@hookimpl
def pretrain_grouped_linear(request: GroupedLinearRequest) -> Answer:
    """CANN's grouped matmul."""
    return _answers(request)


@hookimpl
def pretrain_moe_permute(request: MoePermuteRequest) -> Answer:
    """CANN's fused permutation."""
    return _answers(request)


@hookimpl
def pretrain_optimizer(request: OptimizerRequest) -> Answer:
    """The fused AdamW that torch_npu has."""
    return _answers(request)


@hookimpl
def pretrain_collectives(request: CollectivesRequest) -> Answer:
    """HCCL's options."""
    return _answers(request)


def _answers(request: Request) -> Answer:
    return installed.answers("pretrain_ascend", request)
