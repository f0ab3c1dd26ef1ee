"""CANN's flash attention, called as npu_fusion_attention.

Its masks are True where a key is not seen. sparse_mode 2 is causal from the upper left corner with one compressed mask,
3 from the lower right one; 4 is a band with the same mask, of pre_tockens keys before a query's own and next_tockens
after it, counted from the lower right corner too; 1 takes a whole mask as it is; 0 without a mask sees everything.
Scores stay in fp32; dropout draws its seed from the device's generator. Under a deterministic request the training
calls `torch.use_deterministic_algorithms`, from which torch_npu makes CANN's switch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.plugins.requests import Mask
from pretrain.reference.attention import keys_before
from pretrain.reference.softmax import check_mask
from pretrain_ascend.kernels import attention_masks, operators

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest

WHOLE_MASK, CAUSAL, RIGHT_CAUSAL, BAND = range(1, 5)
"""Values of sparse_mode."""


class FusionAttention:
    """An `AttentionFn`."""

    def __init__(self, request: AttentionRequest) -> None:
        self.request = request

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, training: bool = True
    ) -> Tensor:
        """Return the context [s, b, n * d] for query [s, b, n, d], key and value [keys, b, g, d]."""
        check_causal(self.request, query, key, mask)
        options = options_of(self.request, query, training=training)
        empty = None
        if mask is not None:
            seen, empty = attention_masks.without_empty_rows(mask)
            seen = attention_masks.expanded(seen, query.shape[1], query.shape[2], query.shape[0], key.shape[0])
            options |= {"atten_mask": seen, "sparse_mode": WHOLE_MASK}
        q, k, v = (x.flatten(2).contiguous() for x in (query, key, value))  # "SBH"
        context: Tensor = operators.call("npu_fusion_attention", q, k, v, query.shape[2], "SBH", **options)[0]
        return context if empty is None else _emptied(context, empty, query.shape)


def options_of(request: AttentionRequest, query: Tensor, *, training: bool) -> dict[str, Any]:
    """Return the operator's options but for a mask tensor; without one, causal masks see the last of more keys."""
    options: dict[str, Any] = {"scale": request.scale}
    if training and request.dropout:
        options["keep_prob"] = 1.0 - request.dropout
    if request.mask not in (Mask.CAUSAL, Mask.DOCUMENTS):
        return options
    options["atten_mask"] = attention_masks.compressed_causal(query)
    if request.window is not None:
        return options | {"sparse_mode": BAND, "pre_tockens": request.window - 1, "next_tockens": 0}
    is_square = request.mask is Mask.CAUSAL and not request.keys
    return options | {"sparse_mode": CAUSAL if is_square else RIGHT_CAUSAL}


def check_causal(request: AttentionRequest, query: Tensor, key: Tensor, mask: Tensor | None) -> None:
    """Raise ValueError where the mask is not of the kind asked for, or a causal one would be aligned otherwise."""
    check_mask(request.mask, mask)
    if request.mask is Mask.CAUSAL and keys_before(query, key, mask) and not request.keys:
        msg = f"{query.shape[0]} queries and {key.shape[0]} keys under a causal mask; needs equally many, or `keys`"
        raise ValueError(msg)


def _emptied(context: Tensor, empty: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the context with zeros for empty [b or 1, n or 1, s or 1, 1] rows."""
    rows = empty[(None,) * (4 - empty.dim())].permute(2, 0, 1, 3)  # [s, b, n, 1]
    return context.view(shape).masked_fill(rows, 0).flatten(2)
