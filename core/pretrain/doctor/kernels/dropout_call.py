"""Call of a kernel with the training's dropout, which no oracle can repeat: finite, and dropped at the right rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pretrain.doctor.kernels.trial import Function, Trial
    from pretrain.plugins.requests import Request

DEVIATIONS = 6
"""Standard deviations by which a rate may be off: a right kernel is once in 500 million calls."""


def dropout_fault(trial: Trial, kernel: Function, device: torch.device, request: Request) -> str:
    """Return what is wrong with a call that drops entries; "" where nothing is, or the kernel drops none.

    Args:
        trial: of the kernel, without dropout.
        kernel: called with the trial's arguments while training.
        device: of this rank.
        request: of the kernel.
    """
    probability = getattr(request, "dropout", 0.0)
    if not probability:
        return ""
    given: dict[str, Any] = {name: x.to(device).detach().requires_grad_() for name, x in trial.inputs.items()}
    constants = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in trial.constants.items()}
    output = kernel(**given, **constants | {"training": True})
    grads = torch.autograd.grad(output, list(given.values()), torch.ones_like(output))
    if not all(bool(x.isfinite().all()) for x in (output, *grads)):
        return f"not finite with dropout {probability}"
    if request.operation != "bias_dropout_add":
        return ""
    dropped = grads[list(given).index("x")] == 0
    rate = dropped.double().mean().item()
    allowed = DEVIATIONS * (probability * (1 - probability) / dropped.numel()) ** 0.5
    return f"{rate:.4f} of the entries are dropped, not {probability}" if abs(rate - probability) > allowed else ""
