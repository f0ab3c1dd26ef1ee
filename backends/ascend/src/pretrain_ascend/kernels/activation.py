"""npu_gelu and npu_swiglu."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain_ascend.kernels import operators

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import ActivationRequest


class Gelu:
    """An `ActivationFn`: exact, or by tanh."""

    def __init__(self, request: ActivationRequest) -> None:
        self.options = {"approximate": "tanh"} if request.kind == "gelu_tanh" else {}  # "none" is its default

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., features]."""
        y: Tensor = operators.call("npu_gelu", x if bias is None else x + bias, **self.options)
        return y


class Swiglu:
    """An `ActivationFn`: silu(first half) * second half."""

    def __init__(self, request: ActivationRequest) -> None:
        """Make a kernel; it depends on nothing in the request."""

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., features] for [..., 2 * features]."""
        x = x if bias is None else x + bias
        y: Tensor = operators.call("npu_swiglu", x.contiguous())  # a sum has the strides of its terms
        return y
