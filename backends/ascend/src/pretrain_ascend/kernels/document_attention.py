"""CANN's flash attention of documents: one call of npu_fusion_attention in its layout "TND", without a whole mask.

The tokens of all samples are one dimension, and the operator is given on the host where the queries and the keys of
each document end, which it computes by itself: the modes count from each document's lower right corner.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeAlias

import torch

from pretrain.reference.attention import by_sample, from_samples, require_documents
from pretrain_ascend.kernels import operators
from pretrain_ascend.kernels.fusion_attention import options_of

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest
    from pretrain.plugins.signatures import Documents

Document: TypeAlias = "tuple[int, int, int]"
"""Its number of queries, and where its keys begin and end."""

MOST = 1024
"""Documents of one call. torch_npu-npu_fusion_attention.md: up to 2K, and up to 1K in this layout."""


class DocumentAttention:
    """An `AttentionFn` for `Mask.DOCUMENTS`."""

    def __init__(self, request: AttentionRequest) -> None:
        self.request = request

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Documents | None = None, *, training: bool = True
    ) -> Tensor:
        """Return the context [s, b, n * d] for query [s, b, n, d], key and value [keys, b, g, d]."""
        calls = _calls(require_documents(mask))
        q, k, v = map(by_sample, (query, key, value))
        rows = torch.split(q, [sum(queries for queries, *_ in call) for call in calls])
        contexts = [
            self._attend(part, _seen(k, call), _seen(v, call), call, training=training)
            for part, call in zip(rows, calls, strict=True)
        ]
        return from_samples(_joined(contexts), query.shape[1])

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, call: list[Document], *, training: bool) -> Tensor:
        options = options_of(self.request, q, training=training)
        options["actual_seq_qlen"] = list(accumulate(queries for queries, *_ in call))
        options["actual_seq_kvlen"] = list(accumulate(end - begin for _, begin, end in call))
        tensors = (x.contiguous() for x in (q, k, v))
        context: Tensor = operators.call("npu_fusion_attention", *tensors, q.shape[1], "TND", **options)[0]
        return context


def _calls(documents: Documents) -> list[list[Document]]:
    """Return the documents of each call, without those that have no queries.

    The operator takes these too; what it gives as the gradient of their keys is not documented.
    """
    keys = pairwise(documents.key_ends_on_host)
    each = [(queries, *ends) for queries, ends in zip(documents.queries, keys, strict=True) if queries]
    return [each[first : first + MOST] for first in range(0, len(each), MOST)]


def _seen(x: Tensor, call: list[Document]) -> Tensor:
    """Return the keys or values of these documents: a view, unless there are others between them."""
    ranges: list[tuple[int, int]] = []
    for _, begin, end in call:
        is_next = ranges and ranges[-1][1] == begin
        ranges.append((ranges.pop()[0] if is_next else begin, end))
    return _joined([x[begin:end] for begin, end in ranges])


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
