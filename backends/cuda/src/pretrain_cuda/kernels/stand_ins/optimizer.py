"""Adam and the gradient norm: the state and the temporaries of apex's and torch's kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.reference.adam import Adam

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

CHUNK = 65536
"""Entries of a chunk of torch's multi-tensor kernels (kChunkSize in ATen/native/cuda/MultiTensorApply.cuh)."""


class ApexAdam(Adam):
    """apex.optimizers.FusedAdam: the state of the base class, and a flag that its kernel leaves at zero."""

    def __init__(self, params: Any, *arguments: Any, **settings: Any) -> None:
        super().__init__(params, *arguments, **settings)
        device = self.param_groups[0]["params"][0].device
        self._dummy_overflow_buf = torch.zeros(1, dtype=torch.int32, device=device)

    def _update(self, group: dict[str, Any], *tensors: list[Tensor]) -> None:
        """Allocate nothing: the kernel writes parameters and state in place."""


def gradient_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return what `foreach_norm` returns.

    torch's kernel for CUDA makes a sum for every chunk that the largest tensor has, of each tensor, then one for each
    (foreach_tensor_norm_cuda in ATen/native/cuda/ForeachReduceOp.cu).
    """
    if not tensors:
        return torch.zeros(())
    chunks = max(-(-tensor.numel() // CHUNK) for tensor in tensors)
    device = tensors[0].device
    partial = torch.empty(len(tensors) * chunks, dtype=torch.float32, device=device)
    norms = torch.empty(len(tensors), dtype=torch.float32, device=device)
    del partial
    total: Tensor = torch.linalg.vector_norm(torch.stack(list(norms)))
    return total
