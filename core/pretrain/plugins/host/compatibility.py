"""Check that a plugin was written for this version of pretrain and of its plugin contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain import __version__
from pretrain.errors import BackendError
from pretrain.plugins import CONTRACT

if TYPE_CHECKING:
    from pretrain.plugins.contract import Version
    from pretrain.plugins.host.discovery import Installed


def require_core(installed: Installed) -> None:
    """Check that the distribution's dependency on pretrain allows this version, also if pip's check was skipped.

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
        BackendError: CONTRACT is malformed, or of a version that this pretrain does not support.
    """
    given = getattr(hooks, "CONTRACT", (CONTRACT[0], 0))
    if not (isinstance(given, tuple) and len(given) == 2 and all(type(part) is int for part in given)):
        msg = f"{installed.label}: its CONTRACT is {given!r:.80}.\nAllowed: two numbers, such as {CONTRACT}."
        raise BackendError(msg)
    if given[0] != CONTRACT[0] or given > CONTRACT:
        theirs, ours = (".".join(map(str, version)) for version in (given, CONTRACT))
        other = "pretrain" if given > CONTRACT else installed.distribution or "its distribution"
        msg = (
            f"{installed.label} was written for contract {theirs} of pretrain's plugins; pretrain {__version__} has "
            f"{ours}.\nInstall a newer {other}."
        )
        raise BackendError(msg)
    return given
