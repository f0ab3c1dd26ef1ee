"""torch's own layer norm and RMS norm, fused kernels on most devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F  # noqa: N812  torch's own alias

from pretrain.reference.norm import refuse_bias

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import NormRequest


class TorchNorm:
    """A `NormFn` that accumulates the statistics in fp32.

    The device decides on the dtypes of the weights: the CPU also accepts fp32 weights for fp16 and bf16 inputs.
    """

    def __init__(self, request: NormRequest) -> None:
        self.kind, self.epsilon = request.kind, request.epsilon

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., h] in the dtype of `x`."""
        if self.kind == "LayerNorm":
            return F.layer_norm(x, weight.shape, weight, bias, self.epsilon)
        refuse_bias(bias)
        return F.rms_norm(x, weight.shape, weight, self.epsilon)
