"""npu_moe_token_permute and npu_moe_token_unpermute, whose gradients torch_npu has.

The weights of the rows are put into the operator's order by the core's own code: it sorts by expert, and does not say
that it keeps the order of tokens. The second operator sums a token's rows only where it is given weights, here ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pretrain.plugins.signatures import MoePermutation
from pretrain.reference.experts import experts_of_tokens, weights_of_rows
from pretrain_ascend.kernels import operators

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import MoePermuteRequest


@dataclass(frozen=True, slots=True)
class _Rows:
    indices: Tensor  # int32 [n k]: the row of each copy of a token
    topk: int


def permutation(request: MoePermuteRequest) -> MoePermutation:
    """Return a `MoePermutation`."""

    def permute(tokens: Tensor, routing_map: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, _Rows]:
        experts = experts_of_tokens(routing_map, request.topk)
        rows, indices = operators.call("npu_moe_token_permute", tokens.contiguous(), experts.to(torch.int32))
        places = indices.view(experts.shape).long()
        return rows, weights_of_rows(probs, places, experts), _Rows(indices, request.topk)

    def unpermute(rows: Tensor, order: _Rows, tokens: int) -> Tensor:
        ones = rows.new_ones(tokens, order.topk)
        total: Tensor = operators.call("npu_moe_token_unpermute", rows.contiguous(), order.indices, probs=ones)
        return total

    return MoePermutation(permute=permute, unpermute=unpermute)
