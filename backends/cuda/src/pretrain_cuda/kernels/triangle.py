"""Causal attention over the blocks on and below the diagonal only, with stored weights.

A strip of queries uses the keys up to its own last row: of n x n blocks n (n + 1) / 2 are multiplied, exponentiated,
dropped and stored, (n + 1) / 2n of the square; with more keys than queries all that are before the first of these too.
cuBLAS multiplies, on the tensor cores of any GPU and with
nothing to tune here; a Triton kernel turns scores into weights in place. A fused kernel would save passes over the
strip, but is flash attention, and that has no reason to store weights. Strips come one after the other, so that the
next kernel finds them in the cache if they fit: 512 queries x 2048 keys x 16 heads in fp16 or bf16 are 32 MiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from pretrain.reference.accumulation import accumulation_dtype, add_batched_matmul
from pretrain.reference.attention import by_group, keys_before, scaled_matmul, ungrouped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest
    from pretrain_cuda.kernels.triton.triangle_softmax import DropoutRate


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    groups: int
    rows: int
    scale: float
    divisor: float
    dropout: DropoutRate | None

    @property
    def whole_scale(self) -> float:
        """The whole factor of query times key."""
        return self.scale * self.divisor

    def strips(self, query: Tensor, key: Tensor) -> Iterator[tuple[int, int, int]]:
        """First query of every strip, the one after its last, and how many keys the last one sees."""
        length, before = query.shape[0], key.shape[0] - query.shape[0]
        for start in range(0, length, self.rows):
            end = min(start + self.rows, length)
            yield start, end, before + end


class Triangle:
    """An `AttentionFn` for causal masks, with dropout. It has no state between calls."""

    def __init__(self, request: AttentionRequest, softmax: Any = None) -> None:
        """Make a kernel.

        Args:
            request: describes the attention.
            softmax: a module with `softmax_`, `softmax_backward_` and `DropoutRate`, for a strip. None: Triton's
                kernels.
        """
        self.softmax = softmax or import_module("pretrain_cuda.kernels.triton.triangle_softmax")
        divisor = request.score_divisor if request.dtype.itemsize == 2 else 1.0  # fp32 scores need none
        self.plan = _Plan(
            groups=request.query_groups,
            rows=request.block_size,
            scale=request.scale / divisor,
            divisor=divisor,
            dropout=self.softmax.DropoutRate(request.dropout) if request.dropout else None,
        )

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, training: bool = True
    ) -> Tensor:
        """Return the context [s, b, n * d] for query [s, b, n, d], key and value [keys, b, g, d]."""
        keys_before(query, key, mask)
        dropout = self.plan.dropout if training else None
        context: Tensor = _Triangle.apply(query, key, value, self.plan, dropout, self.softmax)  # type: ignore[no-untyped-call]
        return context


class _Triangle(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: _Plan, dropout: DropoutRate | None, softmax: Any
    ) -> Tensor:
        keys, values = by_group(key, plan.groups), by_group(value, plan.groups)  # views where each head has its own
        seed = softmax.DropoutRate.seed(query.device) if dropout else None
        context = query.new_empty(query.shape)
        strips = []
        for start, end, seen in plan.strips(query, key):
            rows = by_group(query[start:end], plan.groups)
            weights = scaled_matmul(rows, keys[:, :seen].transpose(1, 2), plan.scale)
            kept = softmax.softmax_(weights, end - start, plan.divisor, dropout, seed)
            _matmul_into(context[start:end], kept, values[:, :seen])
            if any(ctx.needs_input_grad):
                strips.append(weights)
            del weights, kept  # or they would lie beside the next strip
        ctx.plan, ctx.dropout, ctx.softmax = plan, dropout, softmax
        ctx.save_for_backward(query, key, value, *strips)
        return context.flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *strips = ctx.saved_tensors
        plan: _Plan = ctx.plan
        keys, values = by_group(key, plan.groups), by_group(value, plan.groups)
        # One strip after the other is added to these: fp16 or bf16 would round every time.
        grad_keys, grad_values = (torch.zeros_like(x, dtype=accumulation_dtype(x.dtype)) for x in (keys, values))
        grad_query, grad_context = query.new_empty(query.shape), grads[0].reshape(query.shape)
        for (start, end, seen), weights in zip(plan.strips(query, key), strips, strict=True):
            grad_rows = by_group(grad_context[start:end], plan.groups)
            grad_scores = torch.bmm(grad_rows, values[:, :seen].transpose(1, 2))
            kept = ctx.softmax.softmax_backward_(grad_scores, weights, end - start, ctx.dropout)
            add_batched_matmul(grad_values[:, :seen], kept.transpose(1, 2), grad_rows)
            rows = by_group(query[start:end], plan.groups)
            add_batched_matmul(grad_keys[:, :seen], grad_scores.transpose(1, 2), rows, plan.whole_scale)
            _matmul_into(grad_query[start:end], grad_scores, keys[:, :seen], plan.whole_scale)
        return grad_query, _as_input(grad_keys, key), _as_input(grad_values, value), None, None, None


def _matmul_into(target: Tensor, a: Tensor, b: Tensor, scale: float = 1.0) -> None:
    """Write scale * a @ b, [b * g, (n / g) * rows, d], to target [rows, b, n, d]."""
    if a.shape[0] == target.shape[1] * target.shape[2]:  # g = n: the heads are a batch of matrices as they lie there
        torch.baddbmm(a.new_empty(1), a, b, beta=0, alpha=scale, out=by_group(target, target.shape[2]))
    else:
        target.copy_(ungrouped(scaled_matmul(a, b, scale), target.shape))


def _as_input(grad: Tensor, x: Tensor) -> Tensor:
    return ungrouped(grad, x.shape).to(x.dtype)
