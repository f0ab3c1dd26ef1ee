"""Causal attention in tiles that stay in the cache; only the lower triangle of the weights is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pretrain.cpu.dropout import DropoutMask
from pretrain.reference.accumulation import accumulation_dtype, add_batched_matmul
from pretrain.reference.attention import by_group, first_key, keys_before, scaled_matmul, ungrouped
from pretrain.reference.softmax import causal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest


def matmul_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the fast dtype for matmuls, at least as exact: fp32 for fp16 without AVX512-FP16 or AMX-FP16.

    Without them torch multiplies fp16 in a plain loop, several hundred times slower than fp32.
    """
    return torch.float32 if dtype is torch.float16 and not _multiplies_fp16() else dtype


def _multiplies_fp16() -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())  # noqa: SLF001  torch has no public function


ROWS = 128
"""Queries of one tile; 64 to 256 were about as fast at 12 heads of 64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    groups: int
    rows: int
    scale: float
    divisor: float
    dropout_mask: DropoutMask | None
    stores: bool
    window: int | None

    @property
    def whole_scale(self) -> float:
        """Total factor of query times key."""
        return self.scale * self.divisor

    def tiles(self, query: Tensor, key: Tensor) -> Iterator[tuple[int, int, slice]]:
        """Return the begin and end of every tile's queries, and its keys: those before the end that a query sees."""
        length, before = query.shape[0], key.shape[0] - query.shape[0]
        for start in range(0, length, self.rows):
            end = min(start + self.rows, length)
            yield start, end, slice(first_key(before + start, self.window), before + end)


class Tiled:
    """An `AttentionFn` for causal masks, with dropout.

    The weights of the lower triangle are stored for the backward pass, or recomputed there; then the dropout mask is
    drawn again too, from a copy of the generator. Both are faster than torch's flash attention.
    """

    def __init__(self, request: AttentionRequest, *, stores: bool) -> None:
        self.dtype = matmul_dtype(request.dtype)
        divisor = request.score_divisor if self.dtype.itemsize == 2 else 1.0  # fp32 scores need no divisor
        self.plan = _Plan(
            groups=request.query_groups,
            rows=min(ROWS, request.block_size),
            scale=request.scale / divisor,
            divisor=divisor,
            dropout_mask=DropoutMask(request.dropout) if request.dropout else None,
            window=request.window,
            stores=stores,
        )

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, training: bool = True
    ) -> Tensor:
        """Return the context [s, b, n * d] for query [s, b, n, d], key and value [keys, b, g, d]."""
        keys_before(query, key, mask)
        q, k, v = (x.to(self.dtype) for x in (query, key, value))
        context: Tensor = _Tiled.apply(q, k, v, self.plan, training)  # type: ignore[no-untyped-call]
        return context.to(query.dtype)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: _Plan, training: bool) -> Tensor:
        keys, values = by_group(key, plan.groups), by_group(value, plan.groups)
        dropout_mask = plan.dropout_mask if training else None
        stores = plan.stores and any(ctx.needs_input_grad)
        ctx.plan, ctx.generator_state = plan, torch.get_rng_state() if dropout_mask and not plan.stores else None
        context = query.new_empty(query.shape)
        saved = []
        for start, end, seen in plan.tiles(query, key):
            weights = _weights(by_group(query[start:end], plan.groups), keys[:, seen], end - start, plan)
            dropped = dropout_mask.draw(weights.shape) if dropout_mask else None
            rows = torch.bmm(_kept(weights, dropped, plan), values[:, seen])
            context[start:end] = ungrouped(rows, context[start:end].shape)
            if stores:
                saved += [weights, dropped]
        ctx.save_for_backward(query, key, value, *saved)
        return context.flatten(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *saved = ctx.saved_tensors
        plan: _Plan = ctx.plan
        keys, values = by_group(key, plan.groups), by_group(value, plan.groups)
        # The tiles are added to these one by one: in fp16 or bf16 every addition would round.
        grad_keys, grad_values = (torch.zeros(x.shape, dtype=accumulation_dtype(x.dtype)) for x in (keys, values))
        grad_query, grad_context = torch.empty_like(query), grads[0].reshape(query.shape)
        stored = zip(saved[::2], saved[1::2], strict=True) if plan.stores else _recomputed(ctx, query, key, keys)
        for (start, end, seen), (weights, dropped) in zip(plan.tiles(query, key), stored, strict=True):
            grad_rows = by_group(grad_context[start:end], plan.groups)
            add_batched_matmul(grad_values[:, seen], _kept(weights, dropped, plan).transpose(1, 2), grad_rows)
            grad_weights = _kept(torch.bmm(grad_rows, values[:, seen].transpose(1, 2)), dropped, plan)
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)  # noqa: SLF001
            rows = by_group(query[start:end], plan.groups)
            add_batched_matmul(grad_keys[:, seen], grad_scores.transpose(1, 2), rows, plan.whole_scale)
            grad_rows = scaled_matmul(grad_scores, keys[:, seen], plan.whole_scale)
            grad_query[start:end] = ungrouped(grad_rows, grad_query[start:end].shape)
        return grad_query, _as_input(grad_keys, key), _as_input(grad_values, value), None, None


def _weights(rows: Tensor, keys: Tensor, queries: int, plan: _Plan) -> Tensor:
    """Return softmax(scale * rows keys^T) [b * g, (n / g) * queries, keys].

    Without a window only the tile's own square is masked.
    """
    scores = scaled_matmul(rows, keys.transpose(1, 2), plan.scale)
    by_query = scores.view(-1, queries, scores.shape[-1])  # [b * n, queries, keys]
    if plan.window is None:
        # Two passes that torch vectorizes, which a masked fill is not. Scores of NaN there are gone before it is added.
        by_query[..., -queries:].tril_().add_(scores.new_full((queries, queries), -torch.inf).triu_(1))
    else:
        by_query.masked_fill_(causal(queries, scores.shape[-1], scores.device, plan.window), -torch.inf)
    if plan.divisor != 1:
        return torch.softmax(scores.to(accumulation_dtype(scores.dtype)).mul_(plan.divisor), dim=-1).to(scores.dtype)
    return torch.softmax(scores, dim=-1, out=scores)


def _recomputed(ctx: Any, query: Tensor, key: Tensor, keys: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Compute the weights and the dropout mask of every tile again, as in the forward pass."""
    plan: _Plan = ctx.plan
    dropout_mask, generator = None, None
    if ctx.generator_state is not None:
        dropout_mask, generator = plan.dropout_mask, torch.Generator().set_state(ctx.generator_state)
    for start, end, seen in plan.tiles(query, key):
        weights = _weights(by_group(query[start:end], plan.groups), keys[:, seen], end - start, plan)
        yield weights, dropout_mask.draw(weights.shape, generator) if dropout_mask else None


def _kept(x: Tensor, dropped: Tensor | None, plan: _Plan) -> Tensor:
    if dropped is None or plan.dropout_mask is None:
        return x
    return x.masked_fill(dropped, 0).mul_(plan.dropout_mask.scale)


def _as_input(grad: Tensor, x: Tensor) -> Tensor:
    return ungrouped(grad, x.shape).to(x.dtype)
