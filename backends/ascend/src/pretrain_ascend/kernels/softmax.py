"""npu_scaled_masked_softmax, and the additions that the mask contract needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.reference.softmax import masked_positions
from pretrain_ascend.kernels import operators

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import SoftmaxRequest


class Softmax:
    """A `SoftmaxFn` for what `softmax_limits` lets through; a causal mask is given as a tensor like any other."""

    def __init__(self, request: SoftmaxRequest) -> None:
        self.mask, self.scale = request.mask, request.scale

    def __call__(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the weights [b, n, queries, keys].

        Raises:
            ValueError: the mask is not of the request's kind.
        """
        masked = masked_positions(self.mask, mask, scores)
        if masked is None:
            msg = "scaled_masked_softmax: called without a mask; only with one"
            raise ValueError(msg)
        return fused_softmax(scores, masked, self.scale)


def fused_softmax(scores: Tensor, masked: Tensor, scale: float) -> Tensor:
    """Return softmax(scale * scores); masked entries and fully masked rows are zero, forward and backward.

    The operator fills masked scores with -10000: a fully masked row comes out uniform, and in a row whose other scores
    are all below -9896 (exp(-104) is zero in fp32) masked keys get a share. The fill after it sets both to zero. What
    is left of the latter is that the weights of such a row add up to less than 1.

    Args:
        scores: [b, n, rows, keys].
        masked: bool, broadcastable to the scores, True = masked.
        scale: the scores are multiplied by it before the mask.
    """
    weights, mask = _called(scores, masked, scale)
    return weights.masked_fill(mask, 0)


def softmax_with_seen_keys(scores: Tensor, masked: Tensor, scale: float) -> Tensor:
    """Return the same for masks that leave every row a key, without the fill: one tensor of weights less is kept.

    Masked entries are zero as the operator makes them: exp(-10000 - maximum) is, unless all scores that a row sees are
    below -9896. Then they get a share, as they do in Megatron's own fused softmax.
    """
    return _called(scores, masked, scale)[0]


def _called(scores: Tensor, masked: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    mask = masked[(None,) * (4 - masked.dim())]
    mask = mask.expand(*mask.shape[:2], *scores.shape[2:]).contiguous()
    weights: Tensor = operators.call("npu_scaled_masked_softmax", scores.contiguous(), mask, scale)
    return weights, mask
