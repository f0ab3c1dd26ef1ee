"""A plugin whose attention is the reference kernel's until a fault comes; installed in trainings of faults only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from chaos.planted import Planted
from chaos.rank_faults import act_of
from pretrain.plugins import CONTRACT, hookimpl
from pretrain.plugins.host.discovery import REFERENCE, load_plugin
from pretrain.plugins.offer import Offer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.plugins.offer import Answer
    from pretrain.plugins.requests import AttentionRequest
    from pretrain.plugins.signatures import AttentionFn

__all__ = ["CONTRACT", "pretrain_attention"]

NAME = "planted"


@hookimpl
def pretrain_attention(request: AttentionRequest) -> Answer:
    """Offer the reference's first kernel, to whose calls the fault of this process is bound."""
    planted = Planted.from_environment()
    if planted is None:
        return None
    answers = load_plugin(REFERENCE).hooks.pretrain_attention(request)
    offer = next(answer for answer in answers if isinstance(answer, Offer))
    return Offer(name=NAME, kind=offer.kind, build=lambda built: _bound(planted, offer, built))


def _bound(planted: Planted, offer: Offer, built: Mapping[str, Any]) -> AttentionFn:
    rank = int(os.environ["RANK"])
    planted.note_rank(rank)
    kernel: AttentionFn = offer.build(built)
    if not planted.concerns(rank):
        return kernel
    act = act_of(planted)

    def attention(query: Any, key: Any, value: Any, mask: Any = None, *, training: bool = True) -> Any:
        return act(kernel(query, key, value, mask, training=training))

    return attention
