"""A call of CANN's RMS norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.reference.norm import refuse_bias
from pretrain_ascend.kernels import operators

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import NormRequest


class RmsNorm:
    """A `NormFn`."""

    def __init__(self, request: NormRequest) -> None:
        self.epsilon = request.epsilon

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., h] in the dtype of `x`."""
        refuse_bias(bias)
        y: Tensor = operators.call("npu_rms_norm", x, weight, self.epsilon)[0]
        return y
