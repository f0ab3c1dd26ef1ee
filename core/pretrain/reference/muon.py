"""Newton-Schulz iteration of Muon, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of x, x^3 and x^5 (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"); one iteration is
odd in the singular values, and takes those from about 0.003 to 1 into 0.7 to 1.2 in five."""
LEAST_NORM = 1e-7
"""What a matrix is divided by at least, as in torch.optim.Muon."""


def orthogonalize(matrices: Tensor, steps: int) -> Tensor:
    """Return the `OrthogonalizeFn` of matrices [k, m, n] in their dtype: each U S V^T becomes about U V^T."""
    linear, cubic, quintic = COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]  # x x^T is smaller of a wide one
    x = matrices.mT if is_tall else matrices
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=LEAST_NORM)
    for _ in range(steps):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic), x, beta=linear)
    return (x.mT if is_tall else x).contiguous()
