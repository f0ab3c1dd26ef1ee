"""The triangle on fake tensors: the kernel itself, with masks of its own.

The masks that the kernel shares are cached for a process, and fake ones belong to one plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain_ascend.kernels import triangle
from pretrain_ascend.kernels.attention_masks import kept_masks

if TYPE_CHECKING:
    from pretrain.plugins.requests import AttentionRequest
    from pretrain.plugins.signatures import AttentionFn


def make(request: AttentionRequest) -> AttentionFn:
    """Return an `AttentionFn` for the fake tensors of one mode."""
    return triangle.make(request, kept_masks())
