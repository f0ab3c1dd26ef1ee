"""residual + dropout(x + bias)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F  # noqa: N812  torch's own alias

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import BiasDropoutAddRequest


class BiasDropoutAdd:
    """A `BiasDropoutAddFn`."""

    def __init__(self, request: BiasDropoutAddRequest) -> None:
        self.dropout = request.dropout

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor, *, training: bool = True) -> Tensor:
        """Return [s, b, h]."""
        x = x if bias is None else x + bias
        return residual + F.dropout(x, self.dropout, training=training)
