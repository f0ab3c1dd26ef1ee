"""Causal attention over only the blocks on and below the diagonal."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias

from pretrain.reference.attention import by_group, scaled_matmul, to_context
from pretrain.reference.masks import causal
from pretrain.reference.softmax import masked_softmax

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest
    from pretrain.reference.attention import ScaledMatmul

BlockSoftmax: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
BlockMask: TypeAlias = "Callable[[int, int, torch.device], Tensor]"


class Triangle:
    """An `AttentionFn` for causal masks: a block of queries uses only the keys up to its own last row.

    Of G x G blocks G (G + 1) / 2 are computed and stored. The last block may be shorter than the others, and shapes may
    change between calls. Keys and values of a block are views.
    """

    def __init__(
        self,
        request: AttentionRequest,
        softmax: BlockSoftmax | None = None,
        *,
        matmul: ScaledMatmul | None = None,
        mask: BlockMask | None = None,
    ) -> None:
        """Make a kernel.

        Args:
            request: describes the attention.
            softmax: of the scores [b, n, rows, keys] of a block, and bool [rows, keys], True = masked; it multiplies by
                the request's score divisor. None: in plain torch.
            matmul: of queries and keys. None: `scaled_matmul`.
            mask: `masks.causal`, or a function that caches its masks. None: a new mask for every block.
        """
        self.request = request
        self.scale = request.scale / request.score_divisor
        self.softmax = softmax or self._softmax
        self.matmul = matmul or scaled_matmul
        self.mask = mask or causal

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, training: bool = True
    ) -> Tensor:
        """Return the context [s, b, n * d] for query [s, b, n, d], key and value [s, b, g, d]."""
        if mask is not None or query.shape[0] != key.shape[0]:
            msg = f"triangle: {query.shape[0]} queries, {key.shape[0]} keys; only equally many, without a mask tensor"
            raise ValueError(msg)
        keys, values = by_group(key, self.request.query_groups), by_group(value, self.request.query_groups)
        start, blocks = 0, []
        for rows in torch.split(query, self.request.block_size):
            start += rows.shape[0]
            blocks.append(self._block(rows, keys[:, :start], values[:, :start], training=training))
        return torch.cat(blocks)

    def _block(self, query: Tensor, keys: Tensor, values: Tensor, *, training: bool) -> Tensor:
        rows, batch, heads, _ = query.shape
        scores = self.matmul(by_group(query, self.request.query_groups), keys.transpose(1, 2), self.scale)
        weights = self.softmax(scores.view(batch, heads, rows, -1), self.mask(rows, keys.shape[1], query.device))
        weights = F.dropout(weights, self.request.dropout, training=training)
        return to_context(torch.bmm(weights.reshape(scores.shape), values).view(batch, heads, rows, -1))

    def _softmax(self, scores: Tensor, masked: Tensor) -> Tensor:
        return masked_softmax(scores, masked, self.request.score_divisor, in_fp32=self.request.softmax_in_fp32)
