"""Cross entropy in CANN's fused kernel, where a rank holds the whole vocabulary."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins.offer import offer_unless
from pretrain_ascend import software
from pretrain_ascend.devices import Family
from pretrain_ascend.kernels import chip_requirements

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import CrossEntropyRequest

NAME = "cross_entropy_loss"
MOST_ROWS = 200_000
"""Most rows that npu_cross_entropy_loss takes, by its documentation."""


def answers(request: CrossEntropyRequest) -> Offer | Decline:
    """Return the one kernel, or the reason that it does not fit."""
    reason = chip_requirements.unsupported_reason(request, Family.A2)
    if request.tensor_parallel_size > 1:
        reason = (
            reason
            or f"tensor_parallel_size {request.tensor_parallel_size}; only 1: the kernel does not sum over a group"
        )
    rows = request.micro_batch_size * request.seq_length
    if rows > MOST_ROWS:
        sizes = f"micro_batch_size {request.micro_batch_size} x seq_length {request.seq_length}"
        reason = reason or f"{sizes} = {rows} rows; at most {MOST_ROWS}"

    def build(_: object) -> Any:
        return import_module("pretrain_ascend.kernels.cross_entropy").CrossEntropy(request)

    return offer_unless(reason, name=NAME, build=build, fake=build, provider=software.provider())
