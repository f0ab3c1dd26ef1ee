"""Layer norm by torch's own kernel, which accumulates the statistics in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F  # noqa: N812  torch's own alias

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import NormRequest


class LayerNorm:
    """A `NormFn`; weights may be fp32 where the input has 16 bits."""

    def __init__(self, request: NormRequest) -> None:
        self.epsilon = request.epsilon

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., h] in the dtype of `x`."""
        return F.layer_norm(x, weight.shape, weight, bias, self.epsilon)
