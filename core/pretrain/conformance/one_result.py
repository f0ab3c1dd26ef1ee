"""Kernels of several results or parts as functions of one result, for tests that know only these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.plugins.signatures import SIGNATURES, by_position

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.plugins.signatures import MoePermutation


def as_function(operation: str, kernel: Any) -> Callable[..., Tensor]:
    """Return a kernel as a function of one result, called by the names of its arguments (`ExampleCall`).

    Of a router the weights; of a permutation the sum of each token's rows times their weights.
    """
    if operation == "moe_permute":
        return _there_and_back(kernel)
    if operation == "router":
        return lambda **given: by_position(operation, kernel)(**given)[0]
    return by_position(operation, kernel) if operation in SIGNATURES else kernel


def _there_and_back(kernel: MoePermutation) -> Callable[..., Tensor]:
    def call(*, tokens: Tensor, probs: Tensor, routing_map: Tensor) -> Tensor:
        rows, weights, order = kernel.permute(tokens, routing_map, probs)
        weighted = (rows * weights.unsqueeze(-1)).to(rows.dtype)
        return kernel.unpermute(weighted, order, tokens.shape[0])

    return call
