"""The three matmuls of a linear, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from torch.nn import functional as F  # noqa: N812  torch's own alias

from pretrain.reference.accumulation import add_matmul
from pretrain.reference.quantization import Operands

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from pretrain.plugins.requests import LinearRequest

    Accumulate: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]


class Matmuls:
    """What `Linear` multiplies with: it makes the operands, and so it is where fp8 is. `Linear` has the rest.

    A device's kernel is a subclass that is given to `Linear`. Tensors are those that `Linear` is called with; gradients
    are in the dtype of `cast`.
    """

    def __init__(
        self, request: LinearRequest, *, dtype: torch.dtype | None = None, accumulate: Accumulate | None = None
    ) -> None:
        """Make matmuls in the dtype of the matrices unless another is given.

        `accumulate` adds grad^T x to a main gradient, for grad [rows, out], x [rows, in]; None: see `accumulation`.
        """
        self.dtype = dtype
        self.operands = Operands(request.quantization, quantized_wgrad=request.quantized_wgrad)
        self._accumulate = accumulate or (lambda main_grad, grad, x: add_matmul(main_grad, grad.t(), x))

    @property
    def is_plain(self) -> bool:
        """Whether autograd's own linear would compute the same."""
        return self.dtype is None and not self.operands.kind

    def cast(self, x: Tensor) -> Tensor:
        """Return the tensor in the dtype of the matmuls."""
        return x if self.dtype is None else x.to(self.dtype)

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x weight^T + bias, [..., out] in x's dtype, for x [..., in], weight [out, in], bias [out]."""
        of_x, of_weight = self.operands.forward(x, weight)
        of_bias = None if bias is None else self.cast(bias)
        return F.linear(self.cast(of_x), self.cast(of_weight), of_bias).to(x.dtype)

    def input_gradient(self, grad: Tensor, weight: Tensor) -> Tensor:
        """Return grad weight, [..., in] in the weight's dtype, for grad [..., out], weight [out, in]."""
        of_grad, of_weight = self.operands.of_input(grad, weight)
        return of_grad.matmul(self.cast(of_weight)).to(weight.dtype)

    def weight_gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """Return grad^T x, [out, in] in x's dtype, for grad [rows, out], x [rows, in]."""
        of_grad, of_x = self.operands.of_weight(grad, x)
        return of_grad.t().matmul(self.cast(of_x)).to(x.dtype)

    def add_weight_gradient(self, main_grad: Tensor, grad: Tensor, x: Tensor) -> None:
        """Add grad^T x to `main_grad` [out, in]; shapes as of `weight_gradient`."""
        of_grad, of_x = self.operands.of_weight(grad, x)
        self._accumulate(main_grad, of_grad, self.cast(of_x))
