"""Layer norm and RMS norm with the negotiated kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from megatron.core.transformer import TransformerConfig
    from torch import Tensor

    from pretrain.plugins.signatures import NormFn


class Norm(nn.Module):
    """Normalize the last dimension of [s, b, h].

    megatron-core's own `WrappedTorchNorm` rejects sequence parallelism. Here the parameters are marked, so that their
    gradients are summed over the tensor-parallel ranks, each of which normalizes other tokens.
    """

    def __init__(
        self,
        config: TransformerConfig,
        hidden_size: int,
        eps: float = 1e-5,  # noqa: ARG002  part of the kernel's request; megatron-core passes it
        *,
        kernel: NormFn,
        sequence_parallel: bool | None = None,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size)) if config.normalization == "LayerNorm" else None
        marked = config.sequence_parallel if sequence_parallel is None else sequence_parallel
        for parameter in self.parameters():
            parameter.sequence_parallel = marked  # type: ignore[attr-defined]  # read by finalize_model_grads

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized tensor in its own dtype."""
        return self.kernel(x, self.weight, self.bias)
