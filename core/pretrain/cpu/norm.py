"""Layer norm and RMS norm by torch's own kernels; statistics are accumulated in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F  # noqa: N812  torch's own alias

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import NormRequest


class LayerNorm:
    """A `NormFn`."""

    def __init__(self, request: NormRequest) -> None:
        self.epsilon = request.epsilon

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., h] in the dtype of `x`."""
        return F.layer_norm(x, weight.shape, weight, bias, self.epsilon)


class RmsNorm:
    """A `NormFn`; the bias is None."""

    def __init__(self, request: NormRequest) -> None:
        self.epsilon = request.epsilon

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return [..., h] in the dtype of `x`."""
        return F.rms_norm(x, weight.shape, weight, self.epsilon)


KINDS = {"LayerNorm": LayerNorm, "RMSNorm": RmsNorm}
"""`NormRequest.kind` -> its kernel."""
