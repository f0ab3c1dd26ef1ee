"""Column-parallel linear; its communication overlaps the weight gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn import functional as F  # noqa: N812  torch's own alias

from pretrain.reference.matmuls import Matmuls

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup, Work

    from pretrain.plugins.requests import LinearRequest


class Linear:
    """A `LinearFn`; its weight gradient follows `LinearRequest`, which is megatron-core 0.16.1's protocol.

    See LinearWithGradAccumulationAndAsyncCommunication.backward.
    """

    def __init__(self, request: LinearRequest, matmuls: Matmuls | None = None) -> None:
        """Make a kernel that multiplies with plain torch, or with a device's matmuls."""
        self.matmuls = matmuls or Matmuls(request)
        self.sequence_parallel = request.sequence_parallel
        self.adds_to_main_grad = request.main_grad_dtype is not None

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, group: ProcessGroup | None = None
    ) -> Tensor:
        """Return [s, b, out] for x [s, b, in], or [s / t, b, in] with sequence_parallel."""
        group = group if group is not None and group.size() > 1 else None
        is_split = self.sequence_parallel and group is not None
        main_grad = _main_grad(weight) if self.adds_to_main_grad else None
        # ZeRO-3 gathers a weight for its forward pass and again for its backward pass. torch's linear would keep a view
        # of the first in its graph, and so all gathered weights; _Linear keeps only the parameter.
        is_gathered = hasattr(weight, "ds_tensor")
        if group is None and main_grad is None and self.matmuls.is_plain and not is_gathered:
            return F.linear(x, weight, bias)
        options = _Options(group=group, is_split=is_split, main_grad=main_grad, matmuls=self.matmuls)
        y: Tensor = _Linear.apply(x, weight, bias, options)  # type: ignore[no-untyped-call]
        return y


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Options:
    group: ProcessGroup | None
    is_split: bool
    main_grad: Tensor | None
    matmuls: Matmuls


def _main_grad(weight: Tensor) -> Tensor | None:
    # A weight that is also the embedding gets a second gradient from autograd (megatron-core marks it zero_out_wgrad).
    # Autograd sums both, which is cheaper than adding zeros to the second one.
    main_grad: Tensor | None = None if getattr(weight, "zero_out_wgrad", False) else getattr(weight, "main_grad", None)
    return main_grad


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: _Options) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.options, ctx.has_bias = options, bias is not None
        if options.is_split and options.group is not None:
            x, _ = _gather(x, options.group, wait=True)
        return options.matmuls.output(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        options: _Options = ctx.options
        x, weight = ctx.saved_tensors
        grad = options.matmuls.cast(grads[0])
        gathering: Work | None = None
        if options.is_split and options.group is not None and ctx.needs_input_grad[1]:
            x, gathering = _gather(x, options.group, wait=False)  # overlaps the next matmul
        grad_x = options.matmuls.input_gradient(grad, weight) if ctx.needs_input_grad[0] else None
        if gathering is not None:
            gathering.wait()
        grad_x, reducing = _reduce(grad_x, options)
        rows = grad.reshape(-1, grad.shape[-1])
        grad_weight = _weight_gradient(rows, x, weight, options) if ctx.needs_input_grad[1] else None
        grad_bias = rows.sum(dim=0).to(weight.dtype) if ctx.has_bias and ctx.needs_input_grad[2] else None
        if reducing is not None:
            reducing.wait()
        return grad_x, grad_weight, grad_bias, None


def _gather(x: Tensor, group: ProcessGroup, *, wait: bool) -> tuple[Tensor, Work | None]:
    whole = x.new_empty((x.shape[0] * group.size(), *x.shape[1:]))
    return whole, dist.all_gather_into_tensor(whole, x.contiguous(), group=group, async_op=not wait)


def _reduce(grad_x: Tensor | None, options: _Options) -> tuple[Tensor | None, Work | None]:
    if grad_x is None or options.group is None:
        return grad_x, None
    if not options.is_split:
        return grad_x, dist.all_reduce(grad_x, group=options.group, async_op=True)
    part = grad_x.new_empty((grad_x.shape[0] // options.group.size(), *grad_x.shape[1:]))
    return part, dist.reduce_scatter_tensor(part, grad_x, group=options.group, async_op=True)


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, options: _Options) -> Tensor | None:
    x = x.reshape(-1, x.shape[-1])
    if options.main_grad is None:
        return options.matmuls.weight_gradient(grad, x)
    options.matmuls.add_weight_gradient(options.main_grad, grad, x)
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    return torch.empty_like(weight)
