"""Scale, mask and softmax by a C extension of apex: forward(scores, [mask,] scale), backward(grad, weights, scale)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from pretrain.plugins.requests import Mask
from pretrain.reference.softmax import check_mask
from pretrain_cuda.kernels.apex_softmax_limits import GENERIC

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import SoftmaxRequest


class Softmax:
    """A `SoftmaxFn` for what `apex_softmax_limits` lets through."""

    def __init__(self, request: SoftmaxRequest, module: str, extension: Any = None) -> None:
        """Make a kernel.

        Args:
            request: describes the softmax.
            module: the extension's name.
            extension: what has its `forward` and `backward`. None: the module of that name.
        """
        self.mask, self.scale = request.mask, request.scale
        self.module, self.extension = module, extension or import_module(module)

    def __call__(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the weights [b, n, queries, keys].

        Raises:
            ValueError: the mask is not of the request's kind, or the scores are too many.
        """
        check_mask(self.mask, mask)
        if self.module == GENERIC and scores.numel() >= 2**31:
            msg = (
                f"{GENERIC}: {scores.numel()} scores; fewer than 2^31, because its offsets have 32 bits.\n"
                "Set a smaller train.micro_batch_size, or kernels.softmax: triton."
            )
            raise ValueError(msg)
        given, masks = _arranged(scores, mask)
        if self.mask is Mask.CAUSAL:
            given = given.flatten(0, 1)  # [b * n, s, s]
        weights: Tensor = _Softmax.apply(given.contiguous(), self.scale, self.extension, *masks)  # type: ignore[no-untyped-call]
        return weights.view(scores.shape)


def _arranged(scores: Tensor, mask: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return scores and mask as the extensions take them: mask [b or 1, 1, queries, keys], contiguous.

    Where heads have masks of their own, every head becomes a micro batch.
    """
    if mask is None:
        return scores, ()
    batch, heads, queries, keys = scores.shape
    mask = mask[(None,) * (4 - mask.dim())]
    if mask.shape[1] > 1:
        scores = scores.reshape(batch * heads, 1, queries, keys)
        mask = mask.expand(batch, heads, queries, keys).reshape(scores.shape)
    return scores, (mask.expand(-1, 1, queries, keys).contiguous(),)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, scale: float, extension: Any, *masks: Tensor) -> Tensor:
        weights: Tensor = extension.forward(scores, *masks, scale)
        ctx.save_for_backward(weights)
        ctx.scale, ctx.extension = scale, extension
        return weights

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weights,) = ctx.saved_tensors
        grad = grads[0].clone(memory_format=torch.contiguous_format)  # two of the extensions write into it
        rest = (None,) * (len(ctx.needs_input_grad) - 1)
        return ctx.extension.backward(grad, weights, ctx.scale), *rest
