"""Adam and the gradient norm."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from pretrain.plugins import installed
from pretrain.plugins.offer import Absent, Decline, Offer
from pretrain.plugins.signatures import OptimizerKernels
from pretrain.reference.adam import FusedAdam, gradient_norm, keeping
from pretrain_cuda.kernels.gradient_norm import foreach_norm

if TYPE_CHECKING:
    from pretrain.plugins.offer import Answer
    from pretrain.plugins.requests import OptimizerRequest
    from pretrain.plugins.signatures import GradientNormFn

EXTENSION = "amp_C"


def answers(request: OptimizerRequest) -> Answer:
    """Return torch's fused Adam, then apex's: both update all weights in one launch, and torch's is always there."""
    fused = keeping(FusedAdam, request)
    kernels = OptimizerKernels(adam=fused, gradient_norm=_norm(request))
    torch_adam = Offer(
        name="fused", build=lambda _: kernels, provider=f"torch {torch.__version__}", fake=lambda _: _fake(fused)
    )
    reason: str | Absent
    missing = [module for module in (EXTENSION, "apex.optimizers") if not installed.has(module)]
    if missing:
        reason = Absent(f"{missing[0]} is not installed; apex brings it when it is built with --cpp_ext --cuda_ext")
        return [torch_adam, Decline(name="apex", reason=reason)]
    for name in ("exp_avg_dtype", "exp_avg_sq_dtype"):
        if (dtype := getattr(request, name)) is not torch.float32:
            reason = f"{name} {str(dtype).removeprefix('torch.')}; apex's FusedAdam keeps its state in fp32"
            return [torch_adam, Decline(name="apex", reason=reason)]
    apex_adam = Offer(
        name="apex",
        build=lambda _: _apex(request),
        provider=installed.provider("apex"),
        fake=lambda _: _fake(_stand_ins().ApexAdam),
    )
    return [torch_adam, apex_adam]


def _apex(request: OptimizerRequest) -> OptimizerKernels:
    adam: type[Any] = import_module("apex.optimizers").FusedAdam
    return OptimizerKernels(adam=adam, gradient_norm=_norm(request))


def _fake(adam: type[torch.optim.Optimizer]) -> OptimizerKernels:
    return OptimizerKernels(adam=adam, gradient_norm=_stand_ins().gradient_norm)


def _stand_ins() -> Any:
    return import_module("pretrain_cuda.kernels.stand_ins.optimizer")


def _norm(request: OptimizerRequest) -> GradientNormFn:
    return foreach_norm if request.device_type == "cuda" else gradient_norm(request.device_type)
