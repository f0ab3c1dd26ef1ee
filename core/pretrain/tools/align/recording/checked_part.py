"""Part of an attention's call that is checked: all of it, or some samples and heads, which do not depend on others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pretrain.plugins.requests import AttentionRequest, SoftmaxRequest

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import Request

MOST_SCORES = 1 << 26
"""Scores that are checked: half a GiB in float64, of which the host has several at a time."""


@dataclass(frozen=True, slots=True)
class CheckedPart:
    """The first samples and groups of heads of a call.

    Attributes:
        request: of the kernel.
        samples: number of those that are checked.
        groups: of heads that share a key; of heads where none do.
    """

    request: Request
    samples: int
    groups: int

    @classmethod
    def of(cls, request: Request, batch: int, most: int = MOST_SCORES) -> CheckedPart:
        """Return as much as has at most `most` scores, at least one group of one sample."""
        if isinstance(request, AttentionRequest):
            groups, scores = request.query_groups, request.heads // request.query_groups * request.seq_length**2
        elif isinstance(request, SoftmaxRequest):
            groups, scores = request.heads, request.queries * request.keys
        else:
            return cls(request, batch, 0)
        fitting = max(1, most // scores)
        kept = min(groups, fitting)
        return cls(request, max(1, min(batch, fitting // kept)), kept)

    @property
    def of_part(self) -> Request:
        """The request for a kernel of this part."""
        if isinstance(self.request, AttentionRequest):
            return replace(self.request, query_groups=self.groups, heads=self.groups * self._shared)
        if isinstance(self.request, SoftmaxRequest):
            return replace(self.request, heads=self.groups)
        return self.request

    def narrow(self, name: str, x: Tensor) -> Tensor:
        """Return the part of an input, its gradient, or of the output or its gradient."""
        if isinstance(self.request, SoftmaxRequest):
            return self._of_mask(x) if name == "mask" else x[: self.samples, : self.groups]
        if not isinstance(self.request, AttentionRequest):
            return x
        if name == "mask":
            return self._of_mask(x)
        if name == "output":
            heads = x.view(*x.shape[:2], self.request.heads, -1)
            return heads[:, : self.samples, : self.groups * self._shared].flatten(2)
        return x[:, : self.samples, : self.groups * (self._shared if name == "query" else 1)]

    @property
    def _shared(self) -> int:
        request: Any = self.request
        return int(request.heads // request.query_groups)

    def _of_mask(self, mask: Tensor) -> Tensor:
        """Return the samples' masks, which all heads share or each has."""
        samples = mask if mask.shape[0] == 1 else mask[: self.samples]
        return samples if samples.shape[1] == 1 else samples[:, : self.groups * self._shared_in_mask]

    @property
    def _shared_in_mask(self) -> int:
        return self._shared if isinstance(self.request, AttentionRequest) else 1
