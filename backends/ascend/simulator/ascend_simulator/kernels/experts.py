"""npu_grouped_matmul, and npu_moe_token_permute and _unpermute with the operators of their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ascend_simulator.kernels.contract import (
    require,
    require_dtype,
    require_one_dtype,
    require_second_generation,
)
from ascend_simulator.kernels.registration import SIMULATOR, kernel

if TYPE_CHECKING:
    from torch import Tensor

GROUPED, PERMUTE, UNPERMUTE = "npu_grouped_matmul", "npu_moe_token_permute", "npu_moe_token_unpermute"
MOST_GROUPS, NARROWER_THAN, MOST_EXPERTS = 1024, 65536, 512


@kernel(f"npu::{GROUPED}")
def grouped_matmul(
    x: list[Tensor], weight: list[Tensor], *, group_list: Tensor | None = None, split_item: int = 0,
    group_type: int | None = None, group_list_type: int = 0, **others: Any,
) -> list[Tensor]:  # fmt: skip
    """Return one tensor for one x and one weight: its rows (group_type 0) or its sums (2) in groups of so many."""
    require_second_generation(GROUPED)
    require(not any(others.values()), GROUPED, "an option that is not simulated")
    require(len(x) == len(weight) == 1 and split_item in {2, 3}, GROUPED, "several tensors; only one each is simulated")
    require(group_list_type == 1 and group_list is not None, GROUPED, "only a list that counts (1) is simulated")
    rows, matrices, counts = x[0], weight[0], group_list
    require_dtype(GROUPED, "x", rows)
    require_dtype(GROUPED, "group_list", counts, (torch.int64,))
    require_one_dtype(GROUPED, x=rows, weight=matrices)
    require(len(counts) <= MOST_GROUPS, GROUPED, f"{len(counts)} groups; at most {MOST_GROUPS}")
    widest = max(rows.shape[-1] if group_type == 0 else 0, matrices.shape[-1])
    require(widest < NARROWER_THAN, GROUPED, f"{widest} columns; only fewer than {NARROWER_THAN}")
    listed = counts.tolist()
    length = rows.shape[1 if group_type == 2 else 0]
    if group_type == 2:
        require(rows.stride(0) == 1 or rows.shape[0] == 1, GROUPED, "x is not transposed, as group_type 2 needs it")
    require(sum(listed) == length, GROUPED, f"{sum(listed)} rows are listed; x has {length}")
    if group_type == 0:
        require(matrices.dim() == 3 and len(matrices) == len(listed), GROUPED, f"a weight of {tuple(matrices.shape)}")
        parts = [_matmul(part, matrix) for part, matrix in zip(rows.split(listed), matrices, strict=True)]
        return [torch.cat(parts).to(rows.dtype)]
    require(group_type == 2, GROUPED, f"group_type {group_type}; only 0 and 2 are simulated")
    pairs = zip(rows.split(listed, dim=1), matrices.split(listed), strict=True)
    # What a sum over nothing gives is not documented.
    sums = [_matmul(a, b) if a.shape[1] else a.new_full((len(a), b.shape[1]), torch.nan).float() for a, b in pairs]
    return [torch.stack(sums).to(rows.dtype)]


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return SIMULATOR.factor(a).float() @ SIMULATOR.factor(b).float()


@kernel(f"npu::{PERMUTE}")
def token_permute(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """Return a copy of a token for each of its indices, sorted by these, and the place of each copy, int32."""
    require_second_generation(PERMUTE)
    require(num_out_tokens is None and not padded_mode, PERMUTE, "an option that is not simulated")
    require_dtype(PERMUTE, "tokens", tokens)
    require_dtype(PERMUTE, "indices", indices, (torch.int32, torch.int64))
    require(indices.dim() == 2 and len(indices) == len(tokens), PERMUTE, f"indices of {tuple(indices.shape)}")
    require(indices.shape[1] <= MOST_EXPERTS, PERMUTE, f"{indices.shape[1]} for a token; at most {MOST_EXPERTS}")
    order = indices.flatten().argsort(stable=True)
    return tokens[order // indices.shape[1]], order.argsort().int()


@kernel(f"npu::{PERMUTE}_grad")
def token_permute_grad(
    tokens: Tensor, grad: Tensor, indices: Tensor, sorted_indices: Tensor, padded_mode: bool = False
) -> Tensor:
    """Return the gradient of the tokens."""
    return _summed(grad, sorted_indices, len(tokens))


@kernel(f"npu::{PERMUTE}_grad_v2")
def token_permute_grad_v2(
    grad: Tensor, sorted_indices: Tensor, tokens: int, dtype: torch.dtype, topk: int, padded_mode: bool = False
) -> Tensor:
    """Return the gradient of the tokens."""
    return _summed(grad, sorted_indices, tokens)


def _summed(rows: Tensor, places: Tensor, tokens: int) -> Tensor:
    return rows[places.long()].view(tokens, -1, rows.shape[-1]).float().sum(1).to(rows.dtype)


@kernel(f"npu::{UNPERMUTE}")
def token_unpermute(
    rows: Tensor, sorted_indices: Tensor, probs: Tensor | None = None, padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """Return for each token the sum of its rows times their weights; without weights a token has one row."""
    require_second_generation(UNPERMUTE)
    require(not padded_mode and restore_shape is None, UNPERMUTE, "an option that is not simulated")
    require_dtype(UNPERMUTE, "permuted_tokens", rows)
    require_dtype(UNPERMUTE, "sorted_indices", sorted_indices, (torch.int32,))
    if probs is None:
        return rows[sorted_indices.long()]
    require_dtype(UNPERMUTE, "probs", probs)
    require(probs.numel() == len(rows), UNPERMUTE, f"{probs.numel()} weights for {len(rows)} rows")
    require(probs.shape[1] <= MOST_EXPERTS, UNPERMUTE, f"{probs.shape[1]} for a token; at most {MOST_EXPERTS}")
    of_token = rows[sorted_indices.long()].view(*probs.shape, -1).float()
    return (of_token * probs.float().unsqueeze(-1)).sum(1).to(rows.dtype)


@kernel(f"npu::_{UNPERMUTE}")
def token_unpermute_kept(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Return what `token_unpermute` returns, and the rows, which the gradient of weights needs."""
    return token_unpermute(*arguments, **options), arguments[0]


@kernel(f"npu::{UNPERMUTE}_grad")
def token_unpermute_grad(
    rows: Tensor, grad: Tensor, sorted_indices: Tensor, probs: Tensor | None = None, padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the gradients of rows and weights."""
    places = sorted_indices.long()
    topk = 1 if probs is None else probs.shape[1]
    copies = grad.repeat_interleave(topk, dim=0).float()
    weighted = copies if probs is None else copies * probs.float().reshape(-1, 1)
    grad_rows = torch.empty_like(rows).index_copy_(0, places, weighted.to(rows.dtype))
    if probs is None:
        return grad_rows, None
    return grad_rows, (copies * rows[places].float()).sum(-1).view(probs.shape).to(probs.dtype)


@kernel(f"npu::{UNPERMUTE}_grad_v2")
def token_unpermute_grad_v2(
    grad: Tensor, sorted_indices: Tensor, rows: int, dtype: torch.dtype, probs: Tensor | None = None,
    padded_mode: bool = False, restore_shape: list[int] | None = None, permuted_tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the gradients of rows and, where the rows are given, of weights."""
    given = grad.new_zeros(rows, grad.shape[-1], dtype=dtype) if permuted_tokens is None else permuted_tokens
    grad_rows, grad_probs = token_unpermute_grad(given, grad, sorted_indices, probs)
    return grad_rows, grad_probs
