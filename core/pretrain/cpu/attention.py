"""Attention kernels of the CPU for a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.cpu.sdpa import Sdpa
from pretrain.cpu.tiled import Tiled
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import Mask

if TYPE_CHECKING:
    from pretrain.plugins.requests import AttentionRequest

TORCH = f"torch {torch.__version__}"
"""Provider of torch's own kernels."""

STORED_UP_TO = 2048
"""Sequence length up to which "tiled" comes first. Beyond about that length the lower triangle of the weights, n * s /
2 per token, is larger than all other activations of a layer, about 17 * n * d with heads of 64."""


def answers(request: AttentionRequest) -> list[Offer | Decline]:
    """Return the kernels for a request, best first."""
    tiled, recomputed = _tiled(request, "tiled", "triangle"), _tiled(request, "recomputed", "flash")
    first = [tiled, recomputed] if request.seq_length <= STORED_UP_TO else [recomputed, tiled]
    return [*first, _sdpa(request)]


def _tiled(request: AttentionRequest, name: str, kind: str) -> Offer | Decline:
    if request.mask is not Mask.CAUSAL:
        return Decline(name=name, kind=kind, reason=f"mask {request.mask}; only {Mask.CAUSAL}")
    if not 0 <= request.dropout < 1:
        return Decline(name=name, kind=kind, reason=f"dropout {request.dropout}; only below 1")
    return Offer(name=name, kind=kind, build=lambda _: Tiled(request, stores=name == "tiled"))


def _sdpa(request: AttentionRequest) -> Offer | Decline:
    if request.dropout > 0:
        return Decline(name="sdpa", kind="flash", reason="no dropout in CPU flash attention")
    return Offer(name="sdpa", kind="flash", build=lambda _: Sdpa(request), provider=TORCH)
