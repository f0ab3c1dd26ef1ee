"""npu_cross_entropy_loss for one rank, without weights, smoothing or z-loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ascend_simulator.kernels.contract import require, require_dtype, require_second_generation
from ascend_simulator.kernels.registration import kernel

if TYPE_CHECKING:
    from torch import Tensor

NAME = "npu_cross_entropy_loss"
MOST_ROWS = 200_000


@kernel(f"npu::{NAME}")
def forward(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    *rest: Any,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return loss, log probabilities, z-loss (zero) and the rows' log-sum-exp for logits [rows, classes]."""
    require_second_generation(NAME)
    require_dtype(NAME, "input", logits)
    require_dtype(NAME, "target", target, (torch.int64,))
    require(
        logits.dim() == 2 and target.shape == logits.shape[:1], NAME, f"{tuple(logits.shape)} and {tuple(target.shape)}"
    )
    require(logits.shape[0] <= MOST_ROWS, NAME, f"{logits.shape[0]} rows; at most {MOST_ROWS}")
    require(weight is None and not any(rest) and not any(options.values()), NAME, "an option that is not simulated")
    inside = ((target >= 0) & (target < logits.shape[1])) | (target == ignore_index)
    require(bool(inside.all()), NAME, f"a target outside of {logits.shape[1]} classes; a device reads foreign memory")
    log_probability = logits.float().log_softmax(-1)
    loss = torch.nn.functional.nll_loss(log_probability, target, reduction=reduction, ignore_index=ignore_index)
    loss = loss if reduction == "none" else loss[None]
    return (
        loss.to(logits.dtype), log_probability.to(logits.dtype), torch.zeros_like(loss, dtype=logits.dtype),
        logits.float().logsumexp(-1).to(logits.dtype),
    )  # fmt: skip


@kernel(f"npu::{NAME}_backward")
def backward(
    grad_loss: Tensor, log_prob: Tensor, target: Tensor, weight: Tensor | None = None, grad_zloss: Tensor | None = None,
    lse_for_zloss: Tensor | None = None, reduction: str = "mean", ignore_index: int = -100, *_: Any, **__: Any,
) -> Tensor:  # fmt: skip
    """Return the logits' gradient."""
    seen = target != ignore_index
    one_hot = torch.nn.functional.one_hot(target.where(seen, 0), log_prob.shape[1])
    scale = grad_loss.float() / seen.sum() if reduction == "mean" else grad_loss.float()
    rows = (scale.expand(target.shape) * seen)[:, None]
    return ((log_prob.float().exp() - one_hot) * rows).to(log_prob.dtype)
