"""Version of the contract that a plugin was written for.

`pretrain.plugins.CONTRACT` is (major, minor). A new hook, member or request field raises the minor number; whatever a
plugin of before would do wrongly raises the major one. A plugin says `CONTRACT = (1, 0)` beside its hooks, or nothing,
which is the first of this major number. Its distribution may say it too, as a dependency: `pretrain>=1.2`.

A request field that is added later has a default that means what was so before, and the version that added it:
`field(default=..., metadata={"since": (1, 1)})`. Where it is anything else, the core declines in the name of kernels
whose plugin does not know the field.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pretrain import __version__
from pretrain.errors import BackendError
from pretrain.plugins import CONTRACT
from pretrain.plugins.offer import Decline

if TYPE_CHECKING:
    from pretrain.plugins.discovery import Installed
    from pretrain.plugins.offer import Offer
    from pretrain.plugins.requests import Request

Version = tuple[int, int]


def require_core(installed: Installed) -> None:
    """Pass when the distribution's dependency on pretrain allows this one; pip sees to it unless told not to.

    Raises:
        BackendError: it does not.
    """
    if not installed.requires:
        return
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415  most distributions allow any

    if not SpecifierSet(installed.requires).contains(__version__, prereleases=True):
        msg = (
            f"{installed.label} requires pretrain{installed.requires}; this is pretrain {__version__}.\n"
            f"Install a pretrain that it allows, or another {installed.distribution}."
        )
        raise BackendError(msg)


def contract_of(installed: Installed, hooks: Any) -> Version:
    """Return the contract that a plugin was written for.

    Raises:
        BackendError: it says so in another form, or is written for one that this pretrain does not keep.
    """
    given = getattr(hooks, "CONTRACT", (CONTRACT[0], 0))
    if not (isinstance(given, tuple) and len(given) == 2 and all(type(part) is int for part in given)):
        msg = f"{installed.label}: its CONTRACT is {given!r:.80}.\nAllowed: two numbers, such as {CONTRACT}."
        raise BackendError(msg)
    if given[0] != CONTRACT[0] or given > CONTRACT:
        theirs, ours = (".".join(map(str, version)) for version in (given, CONTRACT))
        other = "pretrain" if given > CONTRACT else installed.distribution or "its distribution"
        msg = (
            f"{installed.label} was written for contract {theirs} of pretrain's plugins; pretrain {__version__} keeps "
            f"{ours}.\nInstall a newer {other}."
        )
        raise BackendError(msg)
    return given


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
