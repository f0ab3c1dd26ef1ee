"""Version of the plugin contract: hooks, requests and `Backend`.

`pretrain.plugins.CONTRACT` is (major, minor). A new hook, member or request field raises the minor number. A change
that breaks older plugins raises the major number. A plugin states its version as `CONTRACT = (1, 0)` beside its
hooks; without it, it counts as written for the first minor version. Its distribution may state the same as a
dependency: `pretrain>=1.2`. `pretrain.plugins.host.discovery` refuses a plugin of another major version.

A hook that is to be removed is marked with `@leaving` for at least one minor version. A plugin that implements it still
works, and a notice names it at start.

A request field that is added later has a default that keeps the earlier meaning, and the version that added it:
`field(default=..., metadata={"since": (1, 1)})`. If a request has another value there, the core declines for
kernels whose plugin is older than the field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pretrain.plugins.offer import Decline

if TYPE_CHECKING:
    from pretrain.plugins.offer import Offer
    from pretrain.plugins.requests import Request

Version = tuple[int, int]
Hook = TypeVar("Hook", bound=Callable[..., Any])

_LEAVES = "_pretrain_leaves"


def leaving(version: Version, remedy: str) -> Callable[[Hook], Hook]:
    """Mark a hookspec that contract `version`, at least one minor version later, removes; the remedy is for authors.

    Example:
        @hookspec
        @leaving((2, 0), "Implement pretrain_norm")
        def pretrain_layer_norm(request: NormRequest) -> Answer: ...
    """

    def mark(hook: Hook) -> Hook:
        setattr(hook, _LEAVES, f"contract {'.'.join(map(str, version))} removes it. {remedy}.")
        return hook

    return mark


def removal_of(hook: Any) -> str:
    """Return when a hookspec is removed and what replaces it; "" if it stays."""
    return str(getattr(hook, _LEAVES, ""))


def keep(answer: Offer | Decline, request: Request, contract: Version) -> Offer | Decline:
    """Return the answer, or a decline if the request has a value that is newer than the plugin's contract."""
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
    newer = [f"{field.name} {value}" for field, value in values if value != field.default]
    mask = getattr(request, "mask", None)
    return [*newer, f"mask {mask}"] if mask is not None and mask.since > contract else newer
