"""Scale, mask and softmax in Triton: one kernel forward and one backward, for every shape, mask and stride."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
from torch.autograd.function import once_differentiable

from pretrain.plugins.requests import Mask
from pretrain.reference.softmax import check_mask
from pretrain_cuda.kernels.triton.softmax_long import backward_long, forward_long
from pretrain_cuda.kernels.triton.softmax_tile import backward_tile, forward_tile

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import SoftmaxRequest

FORWARD, BACKWARD = 32, 16
"""Entries of each tensor in a thread. Backward there are two tensors to read. In fp16 or bf16 either is four loads of
16 bytes in flight for each thread and, by ptxas, about 50 registers: ten programs of 128 threads fit on a
multiprocessor, with 80 KiB in flight. Chosen by that, not measured."""

LONGEST = 16384
"""Keys up to which a row stays in registers: 1024 threads, the most there are, with BACKWARD entries of two tensors."""

LONG_BLOCK, LONG_WARPS = 4096, 8
"""Tiles of longer rows: 16 entries for a thread at a time."""


class Softmax:
    """A `SoftmaxFn` that saves the weights alone.

    Everything is computed in fp32, even if the request does not ask for it: fp16 or bf16 would save no memory traffic.
    A mask is read where it is, with stride 0 where it is broadcast. Sums are always added in the same order.
    Rows of other lengths than multiples of 16, or not contiguous, are read one element at a time.
    """

    def __init__(self, request: SoftmaxRequest) -> None:
        self.mask, self.scale = request.mask, request.scale

    def __call__(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the weights [b, n, queries, keys], contiguous, in the dtype of the scores.

        Raises:
            ValueError: the mask is not of the request's kind.
        """
        check_mask(self.mask, mask)
        weights: Tensor = _Softmax.apply(scores, mask, self.scale, self.mask is Mask.CAUSAL)  # type: ignore[no-untyped-call]
        return weights


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
        weights = torch.empty_like(scores, memory_format=torch.contiguous_format)
        hidden = scores if mask is None else mask.broadcast_to(scores.shape).view(torch.uint8)
        _launch(
            (forward_tile, forward_long),
            FORWARD,
            weights,
            (scores, hidden, weights, scale, *scores.stride(), *hidden.stride()),
            causal=causal,
            masked=mask is not None,
        )
        ctx.save_for_backward(weights)
        ctx.scale, ctx.causal = scale, causal
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weights,) = ctx.saved_tensors
        grad_scores = torch.empty_like(weights)
        arguments = (grads[0], weights, grad_scores, ctx.scale, *grads[0].stride())
        _launch((backward_tile, backward_long), BACKWARD, weights, arguments, causal=ctx.causal)
        return grad_scores, None, None, None


def tile(queries: int, keys: int, entries: int) -> tuple[int, int, int]:
    """Return rows and columns of a program that holds whole rows, and its warps: at least 128 threads."""
    block = triton.next_power_of_2(keys)
    rows = min(max(1, 128 * entries // block), triton.next_power_of_2(queries))
    return rows, block, max(4, block // (32 * entries))


def _launch(kernels: tuple[Any, Any], entries: int, weights: Tensor, arguments: tuple[Any, ...], **flags: bool) -> None:
    """Run the kernel that holds whole rows, or, where they are too long for it, the other."""
    batch, heads, queries, keys = weights.shape
    if not weights.numel():
        return
    short, long = kernels
    if keys > LONGEST:
        grid = (batch * heads * queries,)
        long[grid](*arguments, heads, queries, keys, **flags, block=LONG_BLOCK, num_warps=LONG_WARPS)
        return
    rows, block, warps = tile(queries, keys, entries)
    grid = (batch * heads * triton.cdiv(queries, rows),)
    short[grid](*arguments, heads, queries, keys, **flags, rows=rows, block=block, num_warps=warps)
