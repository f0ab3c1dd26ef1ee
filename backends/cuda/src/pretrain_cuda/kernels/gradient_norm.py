"""The gradient norm of many tensors in a few launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def foreach_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm over all tensors, fp32 scalar on their device, without host synchronization.

    torch's kernel for CUDA adds up chunks of 65536 entries by trees, then those of a tensor, which keeps the error of a
    long one small; not so on the CPU (pretrain.reference.adam), for which this is not meant. Not tested on a GPU.
    """
    if not tensors:
        return torch.zeros((), device="cuda")
    total: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors), 2, dtype=torch.float32)))  # noqa: SLF001
    return total
