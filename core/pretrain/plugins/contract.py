"""Version of the contract that a plugin was written for.

`pretrain.plugins.CONTRACT` is (major, minor). A new hook, member or request field raises the minor number; whatever a
plugin of before would do wrongly raises the major one. A plugin says `CONTRACT = (1, 0)` beside its hooks, or nothing,
which is the first of this major number. Its distribution may say it too, as a dependency: `pretrain>=1.2`.
`pretrain.plugins.host.compatibility` refuses a plugin of another contract.

A request field that is added later has a default that means what was so before, and the version that added it:
`field(default=..., metadata={"since": (1, 1)})`. Where it is anything else, the core declines in the name of kernels
whose plugin does not know the field.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pretrain.plugins.offer import Decline

if TYPE_CHECKING:
    from pretrain.plugins.offer import Offer
    from pretrain.plugins.requests import Request

Version = tuple[int, int]


def keep(answer: Offer | Decline, request: Request, contract: Version) -> Offer | Decline:
    """Return the answer, or where the request says something that its plugin cannot know of, a decline instead."""
    unknown = _unknown(request, contract)
    if isinstance(answer, Decline) or not unknown:
        return answer
    theirs = ".".join(map(str, contract))
    reason = f"written for contract {theirs}, which has no {', '.join(unknown)}"
    return Decline(name=answer.name, kind=answer.kind, reason=reason)


def _unknown(request: Request, contract: Version) -> list[str]:
    """Return "field value" for what a plugin of that contract does not know, and cannot ignore."""
    new = [field for field in dataclasses.fields(request) if field.metadata.get("since", (0, 0)) > contract]
    values = [(field, getattr(request, field.name)) for field in new]
    return [f"{field.name} {value}" for field, value in values if value != field.default]
