"""Bias and activation of the MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F  # noqa: N812  torch's own alias

if TYPE_CHECKING:
    from torch import Tensor


def gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """An `ActivationFn`: x * (1 + erf(x / sqrt(2))) / 2 of x + bias."""
    return F.gelu(x if bias is None else x + bias)


def gelu_tanh(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """An `ActivationFn`: GELU's approximation by tanh (Hendrycks and Gimpel 2016, arXiv 1606.08415) of x + bias."""
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


def swiglu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """An `ActivationFn`: silu(first half) * second half of x + bias (Shazeer 2020, arXiv 2002.05202)."""
    gate, linear = (x if bias is None else x + bias).chunk(2, dim=-1)
    return F.silu(gate) * linear


KINDS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "swiglu": swiglu}
"""`ActivationRequest.kind` -> its kernel."""
