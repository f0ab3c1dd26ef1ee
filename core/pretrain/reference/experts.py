"""Experts: the choice of each token's experts, the sorting of tokens by expert, and the experts' linears."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from pretrain.plugins.signatures import MoePermutation
from pretrain.reference.accumulation import add_matmul
from pretrain.reference.quantization import Operands

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import GroupedLinearRequest, MoePermuteRequest, RouterRequest


class Router:
    """A `RouterFn`; the formulas are in `RouterRequest`.

    With groups and a bias as in DeepSeek-V3 (arXiv 2412.19437, equations 12 to 16, and node-limited routing).
    """

    def __init__(self, request: RouterRequest) -> None:
        self.request = request

    def __call__(self, logits: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return weights fp32 [n, E] and the choice, bool [n, E]."""
        request = self.request
        is_sigmoid = request.score_function == "sigmoid"
        chosen = self._choose(logits.detach(), bias)
        if is_sigmoid:
            weights = logits.sigmoid().masked_fill(~chosen, 0.0)
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) if request.topk > 1 else weights
        elif request.pre_softmax:
            weights = logits.softmax(dim=-1).masked_fill(~chosen, 0.0)
        else:
            weights = logits.masked_fill(~chosen, -torch.inf).softmax(dim=-1)
        return weights * request.scaling_factor, chosen

    def _choose(self, logits: Tensor, bias: Tensor | None) -> Tensor:
        request = self.request
        scores = logits
        if request.score_function == "sigmoid":
            scores = logits.sigmoid()
        elif request.pre_softmax:
            scores = logits.softmax(dim=-1)
        scores = scores if bias is None else scores + bias.detach()
        if request.num_groups is not None and request.group_topk is not None:
            groups = scores.view(scores.shape[0], request.num_groups, -1)
            of_group = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(dim=-1)
            is_near = highest(of_group, request.group_topk)
            scores = groups.masked_fill(~is_near.unsqueeze(-1), -torch.inf).flatten(-2)
        return highest(scores, request.topk)


def highest(scores: Tensor, number: int) -> Tensor:
    """Return bool [n, E], True at so many highest scores of each row; of equal ones at the lower index.

    NaN counts as the highest, so that every row has so many.
    """
    best = scores.sort(dim=-1, descending=True, stable=True).indices[:, :number]  # torch.topk promises no order
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, value=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Which row is which token's; both are int64."""

    token_of_row: Tensor  # [n k]
    rows_of_token: Tensor  # [n, k], by expert
    experts_of_token: Tensor  # [n, k], ascending


def permutation(request: MoePermuteRequest) -> MoePermutation:
    """Return a `MoePermutation` that sums the rows of a token in the order of its experts, unrounded."""

    def permute(tokens: Tensor, routing_map: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Order]:
        order = order_of(routing_map, request.topk)
        rows: Tensor = _Copies.apply(tokens, order)  # type: ignore[no-untyped-call]
        return rows, weights_of_rows(probs, order.rows_of_token, order.experts_of_token), order

    def unpermute(rows: Tensor, order: Order, tokens: int) -> Tensor:  # noqa: ARG001  the order has their number
        total: Tensor = _Sums.apply(rows, order)  # type: ignore[no-untyped-call]
        return total

    return MoePermutation(permute=permute, unpermute=unpermute)


def order_of(routing_map: Tensor, topk: int) -> Order:
    """Return the order of rows sorted by expert, then token, for bool [n, E] with `topk` True in each row.

    Nothing is sorted, no shape depends on values, and nothing waits for the device.
    """
    tokens, experts = routing_map.shape
    experts_of_token = experts_of_tokens(routing_map, topk)
    row_of_pair = routing_map.t().reshape(-1).cumsum(dim=0).view(experts, tokens).t() - 1
    rows_of_token = row_of_pair.gather(1, experts_of_token)
    copies = torch.arange(tokens * topk, device=routing_map.device)
    copy_of_row = torch.empty_like(copies).scatter_(0, rows_of_token.reshape(-1), copies)
    return Order(token_of_row=copy_of_row // topk, rows_of_token=rows_of_token, experts_of_token=experts_of_token)


def experts_of_tokens(routing_map: Tensor, topk: int) -> Tensor:
    """Return the experts of each token, int64 [n, k], ascending."""
    which = torch.arange(1, topk + 1, device=routing_map.device).expand(len(routing_map), topk).contiguous()
    return torch.searchsorted(routing_map.cumsum(dim=1), which)  # the j-th is where the count of True reaches j


def weights_of_rows(probs: Tensor, rows_of_token: Tensor, experts_of_token: Tensor) -> Tensor:
    """Return the weight of each row, fp32 [n k], for probs [n, E]; differentiable."""
    weights: Tensor = _Weights.apply(probs, rows_of_token, experts_of_token)  # type: ignore[no-untyped-call]
    return weights


def _sum_of_rows(rows: Tensor, rows_of_token: Tensor) -> Tensor:
    """Return [n, h] of rows [n k, h]; torch accumulates fp16 and bf16 in fp32 and rounds once."""
    return rows.index_select(0, rows_of_token.reshape(-1)).view(*rows_of_token.shape, -1).sum(dim=1)


class _Copies(torch.autograd.Function):
    """Backward by the inverse index: that of indexing would add atomically, in any order."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Order) -> Tensor:
        ctx.save_for_backward(order.rows_of_token)
        return tokens.index_select(0, order.token_of_row)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (rows_of_token,) = ctx.saved_tensors
        return _sum_of_rows(grads[0], rows_of_token), None


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Order) -> Tensor:
        ctx.save_for_backward(order.token_of_row)
        return _sum_of_rows(rows, order.rows_of_token)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (token_of_row,) = ctx.saved_tensors
        return grads[0].index_select(0, token_of_row), None


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, probs: Tensor, rows_of_token: Tensor, experts_of_token: Tensor) -> Tensor:
        ctx.save_for_backward(rows_of_token, experts_of_token)
        ctx.like = (probs.shape, probs.dtype)
        of_token = probs.gather(1, experts_of_token)
        return torch.empty_like(of_token).view(-1).scatter_(0, rows_of_token.reshape(-1), of_token.view(-1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        rows_of_token, experts_of_token = ctx.saved_tensors
        shape, dtype = ctx.like
        of_token = grads[0].index_select(0, rows_of_token.reshape(-1)).view_as(rows_of_token)
        return of_token.new_zeros(shape, dtype=dtype).scatter_(1, experts_of_token, of_token), None, None


class GroupedLinear:
    """A `GroupedLinearFn`: one matmul for each expert, after the counts are read on the host."""

    def __init__(self, request: GroupedLinearRequest) -> None:
        self.adds_to_main_grad = request.main_grad_dtype is not None
        self.operands = Operands(request.quantization, quantized_wgrad=request.quantized_wgrad)

    def __call__(self, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        """Return [rows, out] for x [rows, in] and weight [experts, out, in]."""
        main_grad = getattr(weight, "main_grad", None) if self.adds_to_main_grad else None
        listed = _even(x.shape[0], weight.shape[0]) if isinstance(counts, FakeTensor) else counts.tolist()
        y: Tensor = _GroupedLinear.apply(x, weight, listed, main_grad, self.operands)  # type: ignore[no-untyped-call]
        return y


def _even(rows: int, experts: int) -> list[int]:
    """Return as many rows for each expert, for counts without values; the first ones have what is left over."""
    return [rows // experts + (expert < rows % experts) for expert in range(experts)]


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, counts: list[int], main_grad: Tensor | None, operands: Operands
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.counts, ctx.main_grad, ctx.operands = counts, main_grad, operands
        y = x.new_empty(x.shape[0], weight.shape[1])
        for expert, (result, rows) in enumerate(zip(torch.split(y, counts), torch.split(x, counts), strict=True)):
            torch.mm(operands.rounded(rows, 1), operands.rounded_weight(weight, 1, expert).t(), out=result)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad, grad_x, grad_weight = grads[0], None, None
        if ctx.needs_input_grad[0]:
            grad_x = x.new_empty(x.shape)
            results, parts = (torch.split(each, ctx.counts) for each in (grad_x, grad))
            for expert, (result, rows) in enumerate(zip(results, parts, strict=True)):
                of_rows = ctx.operands.rounded(rows, 1, is_gradient=True)
                torch.mm(of_rows, ctx.operands.rounded_weight(weight, 0, expert), out=result)
        if ctx.needs_input_grad[1]:
            pairs = zip(torch.split(grad, ctx.counts), torch.split(x, ctx.counts), strict=True)
            grad_weight = _weight_gradient([ctx.operands.of_weight(*pair) for pair in pairs], weight, ctx.main_grad)
        return grad_x, grad_weight, None, None, None


def _weight_gradient(pairs: list[tuple[Tensor, Tensor]], weight: Tensor, main_grad: Tensor | None) -> Tensor | None:
    if main_grad is None:
        gradient = torch.empty_like(weight)
        for (grad, x), result in zip(pairs, gradient, strict=True):
            torch.mm(grad.t(), x, out=result)
        return gradient
    for (grad, x), total in zip(pairs, main_grad, strict=True):
        add_matmul(total, grad.t(), x)
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    return torch.empty_like(weight)
