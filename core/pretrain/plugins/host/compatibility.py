"""Plugins that were written for another version of pretrain or of its plugin contract are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain import __version__
from pretrain.errors import BackendError
from pretrain.plugins import CONTRACT

if TYPE_CHECKING:
    from pretrain.plugins.contract import Version
    from pretrain.plugins.host.discovery import Installed


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
