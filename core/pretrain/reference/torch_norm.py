"""torch's own layer norm and RMS norm, which are fused kernels on most devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F  # noqa: N812  torch's own alias

from pretrain.reference.norm import refuse_bias

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import NormRequest


class TorchNorm:
    """A `NormFn` that accumulates the statistics in fp32.

    Which dtypes the weights may have beside the input's is the device's: on the CPU fp32 beside 16 bits, too.
    """

    def __init__(self, request: NormRequest) -> None:
        self.kind, self.epsilon = request.kind, request.epsilon

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., h] in the dtype of `x`."""
        if self.kind == "LayerNorm":
            return F.layer_norm(x, weight.shape, weight, bias, self.epsilon)
        refuse_bias(bias)
        return F.rms_norm(x, weight.shape, weight, self.epsilon)
