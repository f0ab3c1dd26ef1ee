"""Attention with stored weights, causal attention over only the blocks below the diagonal, and document by document."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias

from pretrain.plugins.signatures import Documents
from pretrain.reference.softmax import Softmax, causal, masked_softmax

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest
    from pretrain.plugins.signatures import AttentionFn, SoftmaxFn


ScaledMatmul: TypeAlias = "Callable[[Tensor, Tensor, float], Tensor]"
"""Type of `scaled_matmul`."""


class Attention:
    """An `AttentionFn` that stores the weights of all queries and keys."""

    def __init__(
        self, request: AttentionRequest, softmax: SoftmaxFn | None = None, *, matmul: ScaledMatmul | None = None
    ) -> None:
        """Make a kernel; `softmax` multiplies by the request's score divisor, and `matmul` is of queries and keys."""
        self.softmax = softmax or Softmax(request.softmax())
        self.matmul = matmul or scaled_matmul
        self.groups, self.dropout, self.window = request.query_groups, request.dropout, request.window
        self.scale = request.scale / request.score_divisor  # the softmax multiplies by the divisor

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, training: bool = True
    ) -> Tensor:
        """Return the context [s, b, n * d] for query [s, b, n, d], key and value [keys, b, g, d]."""
        queries, batch, heads, _ = query.shape
        grouped = by_group(query, self.groups)
        scores = self.matmul(grouped, by_group(key, self.groups).transpose(1, 2), self.scale)
        if self.window is not None and mask is None:  # as `AttentionRequest.softmax` says
            mask = causal(queries, key.shape[0], query.device, self.window)[None, None]
        weights = self.softmax(scores.view(batch, heads, queries, -1), mask)
        weights = F.dropout(weights, self.dropout, training=training)
        context = torch.bmm(weights.reshape(scores.shape), by_group(value, self.groups))
        return to_context(context.view(batch, heads, queries, -1))


def by_group(x: Tensor, groups: int) -> Tensor:
    """Return [b * g, (n / g) * s, d] for [s, b, n, d]: the heads that share a key are stacked."""
    s, b, n, d = x.shape
    split = x.reshape(s, b, groups, n // groups, d)
    return split.permute(1, 2, 3, 0, 4).reshape(b * groups, n // groups * s, d)


def ungrouped(x: Tensor, shape: torch.Size) -> Tensor:
    """Return [s, b, n, d], which is `shape`, for [b * g, (n / g) * s, d]: the inverse of `by_group`."""
    s, b, n, d = shape
    return x.view(b, n, s, d).permute(2, 0, 1, 3)


def scaled_matmul(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return scale * a @ b for batches of matrices, scaled before it is rounded to the dtype.

    The BLAS libraries of CPUs and NVIDIA's GPUs apply alpha in this order. A device that rounds the matmul first needs
    another `ScaledMatmul`: with scaling after the rounding, scores beyond the dtype's range are lost.
    """
    return torch.baddbmm(a.new_empty(1), a, b, beta=0, alpha=scale)  # beta 0: the empty tensor is not read


def to_context(x: Tensor) -> Tensor:
    """Return [s, b, n * d] for [b, n, s, d]."""
    b, n, s, d = x.shape
    return x.permute(2, 0, 1, 3).reshape(s, b, n * d)


def keys_before(query: Tensor, key: Tensor, mask: object) -> int:
    """Return how many keys [keys, ...] lie before the first of the queries [s, ...], whose last sees the last key.

    Raises ValueError where a causal kernel cannot be meant: for fewer keys than queries, and a mask.
    """
    before = key.shape[0] - query.shape[0]
    if mask is not None or before < 0:
        msg = f"a causal kernel: {query.shape[0]} queries, {key.shape[0]} keys; needs as many or more, and no mask"
        raise ValueError(msg)
    return before


class ByDocument:
    """An `AttentionFn` for `Mask.DOCUMENTS`: one for causal masks, called for each document by itself.

    No mask is made. The kernel is called with one sample, and lengths that change from call to call.
    """

    def __init__(self, kernel: AttentionFn) -> None:
        self.kernel = kernel

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Documents | None = None, *, training: bool = True
    ) -> Tensor:
        """Return the context [s, b, n * d] for query [s, b, n, d], key and value [keys, b, g, d]."""
        documents = require_documents(mask)
        keys = documents.keys
        lengths = documents.queries, keys, keys
        parts = [torch.split(by_sample(x), own) for x, own in zip((query, key, value), lengths, strict=True)]
        contexts = [
            self.kernel(*(x.unsqueeze(1) for x in document), training=training)
            for document in zip(*parts, strict=True)
            if document[0].shape[0]
        ]
        return from_samples(torch.cat(contexts), query.shape[1])


def require_documents(mask: object) -> Documents:
    """Return the mask argument of `Mask.DOCUMENTS`; raises ValueError if it is another."""
    if not isinstance(mask, Documents):
        msg = f"a kernel built for the mask 'documents' was called with {type(mask).__name__}; needs Documents"
        raise ValueError(msg)  # noqa: TRY004  as `check_mask`
    return mask


def by_sample(x: Tensor) -> Tensor:
    """Return [b * s, n, d] for [s, b, n, d], sample after sample: a view of one sample."""
    return x.transpose(0, 1).flatten(0, 1)


def from_samples(x: Tensor, batch: int) -> Tensor:
    """Return [s, b, n * d], contiguous, for [b * s, ...]: the way back from `by_sample`, of a context."""
    return x.reshape(batch, x.shape[0] // batch, -1).transpose(0, 1).contiguous()


def first_key(query: int, window: int | None) -> int:
    """Return the first key that a query sees under a causal mask, by their numbers."""
    return 0 if window is None else max(0, query - window + 1)


BlockSoftmax: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
BlockMask: TypeAlias = "Callable[[int, int, torch.device, int | None], Tensor]"
"""Type of `causal`."""


class CausalBlocks:
    """An `AttentionFn` for causal masks: a block of queries uses only the keys up to its own last row.

    Of G x G blocks G (G + 1) / 2 are computed and stored, with a window those that it reaches. The last block may be
    shorter than the others, shapes may change between calls, and there may be more keys than queries. Keys and values
    of a block are views.
    """

    def __init__(
        self,
        request: AttentionRequest,
        softmax: BlockSoftmax | None = None,
        *,
        matmul: ScaledMatmul | None = None,
        mask: BlockMask | None = None,
    ) -> None:
        """Make a kernel; `matmul` is of queries and keys, and `mask` is `causal`, or a function that caches its masks.

        `softmax` is of the scores [b, n, rows, keys] of a block, and bool [rows, keys], True = masked; it multiplies by
        the request's score divisor.
        """
        self.request = request
        self.scale = request.scale / request.score_divisor
        self.softmax = softmax or self._softmax
        self.matmul = matmul or scaled_matmul
        self.mask = mask or causal

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, training: bool = True
    ) -> Tensor:
        """Return the context [s, b, n * d] for query [s, b, n, d], key and value [keys, b, g, d]."""
        end, blocks = keys_before(query, key, mask), []
        keys, values = by_group(key, self.request.query_groups), by_group(value, self.request.query_groups)
        for rows in torch.split(query, self.request.block_size):
            begin = first_key(end, self.request.window)
            begin -= begin % self.request.block_size  # whole blocks: few shapes, which the kernels of a device take
            end += rows.shape[0]
            blocks.append(self._block(rows, keys[:, begin:end], values[:, begin:end], training=training))
        return torch.cat(blocks)

    def _block(self, query: Tensor, keys: Tensor, values: Tensor, *, training: bool) -> Tensor:
        rows, batch, heads, _ = query.shape
        scores = self.matmul(by_group(query, self.request.query_groups), keys.transpose(1, 2), self.scale)
        masked = self.mask(rows, keys.shape[1], query.device, self.request.window)
        weights = self.softmax(scores.view(batch, heads, rows, -1), masked)
        weights = F.dropout(weights, self.request.dropout, training=training)
        return to_context(torch.bmm(weights.reshape(scores.shape), values).view(batch, heads, rows, -1))

    def _softmax(self, scores: Tensor, masked: Tensor) -> Tensor:
        return masked_softmax(scores, masked, self.request.score_divisor, in_fp32=self.request.softmax_in_fp32)
