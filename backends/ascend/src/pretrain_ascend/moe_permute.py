"""The sorting of tokens by expert in CANN's fused kernels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins.offer import offer_unless
from pretrain_ascend import software
from pretrain_ascend.devices import Family
from pretrain_ascend.kernels import chip_requirements

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import MoePermuteRequest

NAME = "moe_token_permute"
MOST_EXPERTS = 512
"""aclnnMoeTokenPermute: of one token."""


def answers(request: MoePermuteRequest) -> Offer | Decline:
    """Return the one kernel, or the reason that it does not fit."""
    reason = chip_requirements.unsupported_reason(request, Family.A2)
    if request.topk > MOST_EXPERTS:
        reason = reason or f"{request.topk} experts of a token; at most {MOST_EXPERTS}"
    if request.deterministic:
        reason = reason or "deterministic; only without: its documentation promises no order of a sum"

    def build(_: object) -> Any:
        return import_module("pretrain_ascend.kernels.moe_token_permute").permutation(request)

    return offer_unless(reason, name=NAME, build=build, fake=build, provider=software.provider())
