"""Wrong kernels of experts, each by a plausible mistake."""

from __future__ import annotations

from dataclasses import replace

import torch

from pretrain.plugins.offer import Offer
from pretrain.plugins.signatures import MoePermutation
from pretrain.reference.experts import GroupedLinear, Router, highest, permutation


def offer(kernel):
    return Offer(name=kernel.__name__, build=lambda built: kernel)


def grouped_linears(request):
    right = GroupedLinear(replace(request, main_grad_dtype=None))

    def one_row_late(x, weight, counts):
        ends = (counts.cumsum(0) + 1).clamp(max=x.shape[0])
        return right(x, weight, ends.diff(prepend=ends.new_zeros(1)))

    def even_counts(x, weight, counts):
        experts = counts.numel()
        return right(x, weight, torch.tensor([x.shape[0] // experts] * (experts - 1) + [-(-x.shape[0] // experts)]))

    def leaves_gradients_of_empty_experts(x, weight, counts):
        return LeavesGradients.apply(x, weight, counts)

    def adds_experts_and_returns(x, weight, counts):
        if hasattr(weight, "main_grad"):
            weight.register_hook(lambda gradient: weight.main_grad.add_(gradient) if weight.grad is None else None)
            return right(x, weight * 1, counts)
        return right(x, weight, counts)

    kernels = (one_row_late, leaves_gradients_of_empty_experts, adds_experts_and_returns)
    return [offer(each) for each in (*kernels, even_counts)]


class LeavesGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, counts):
        ctx.save_for_backward(x, weight)
        ctx.counts = counts.tolist()
        return torch.cat([part @ matrix.t() for part, matrix in zip(x.split(ctx.counts), weight, strict=True)])

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_weight = torch.full_like(weight, 7.0)  # what another tensor has left there
        parts = list(zip(x.split(ctx.counts), grad.split(ctx.counts), strict=True))
        for expert, (rows, of_rows) in enumerate(parts):
            if rows.numel():
                grad_weight[expert] = of_rows.t() @ rows
        grad_x = torch.cat([of_rows @ matrix for (_, of_rows), matrix in zip(parts, weight, strict=True)])
        return grad_x, grad_weight, None


def permutations(request):
    right = permutation(request)

    def last_token_first(tokens, routing_map, probs):
        rows, weights, order = right.permute(tokens.flip(0), routing_map.flip(0), probs.flip(0))
        return rows, weights, order

    def weights_by_token(tokens, routing_map, probs):
        rows, _, order = right.permute(tokens, routing_map, probs)
        return rows, probs.masked_select(routing_map), order

    def loses_the_gradient_of_weights(tokens, routing_map, probs):
        return right.permute(tokens, routing_map, probs.detach())

    def adds_in_any_order(rows, order, tokens):
        noise = torch.rand(()) * 2**-20 if request.deterministic else 0.0
        return right.unpermute(rows, order, tokens) * (1 + noise)

    def flipped(rows, order, tokens):
        return right.unpermute(rows, order, tokens).flip(0)

    kernels = {
        last_token_first: flipped,
        weights_by_token: right.unpermute,
        loses_the_gradient_of_weights: right.unpermute,
        right.permute: adds_in_any_order,
    }
    return [
        Offer(
            name=(unpermute if permute is right.permute else permute).__name__,
            build=lambda built, pair=(permute, unpermute): MoePermutation(permute=pair[0], unpermute=pair[1]),
        )
        for permute, unpermute in kernels.items()
    ]


def routers(request):
    right = Router(request)
    is_sigmoid, is_grouped = request.score_function == "sigmoid", request.num_groups is not None

    def bias_weighs(logits, bias=None):
        _, chosen = right(logits, bias)
        if bias is None or not is_sigmoid:
            return right(logits, bias)
        weights = (logits.sigmoid() + bias).masked_fill(~chosen, 0)
        return weights / weights.sum(-1, keepdim=True) * request.scaling_factor, chosen

    def divides_by_all(logits, bias=None):
        _, chosen = right(logits, bias)
        scores = logits.sigmoid() if is_sigmoid else logits.softmax(-1)
        return scores.masked_fill(~chosen, 0) * request.scaling_factor, chosen

    def by_groups(logits, bias, number, other):
        scores = logits.detach().sigmoid() if is_sigmoid else logits.detach()
        scores = scores if bias is None else scores + bias
        groups = scores.view(-1, request.num_groups, request.experts // request.num_groups)
        worth = groups.topk(min(number, groups.shape[-1])).values.sum(-1)
        kept = highest(worth, request.group_topk).unsqueeze(-1)
        chosen = highest(groups.masked_fill(~kept, other).flatten(-2), request.topk)
        weights = (logits.sigmoid() if is_sigmoid else logits.exp()).masked_fill(~chosen, 0)
        return weights / weights.sum(-1, keepdim=True) * request.scaling_factor, chosen

    def group_of_its_best(logits, bias=None):
        return by_groups(logits, bias, 1, -torch.inf) if is_grouped else right(logits, bias)

    def zeros_for_other_groups(logits, bias=None):
        return by_groups(logits, bias, 2, 0.0) if is_grouped else right(logits, bias)

    def higher_of_equals(logits, bias=None):
        weights, chosen = right(logits.flip(-1), None if bias is None else bias.flip(-1))
        return weights.flip(-1), chosen.flip(-1)

    def over_a_threshold(logits, bias=None):
        weights, chosen = right(logits, bias)
        least = logits.masked_fill(~chosen, torch.inf).amin(-1, keepdim=True)
        return weights, chosen & (logits >= least)

    wrong = (bias_weighs, divides_by_all, group_of_its_best, zeros_for_other_groups, higher_of_equals, over_a_threshold)
    return [offer(each) for each in wrong]
