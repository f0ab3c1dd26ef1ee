"""Import of one plugin; a failure names the provider, the cause and the remedy."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from pretrain import __version__
from pretrain.errors import BackendError
from pretrain.plugins import CONTRACT
from pretrain.plugins.backend import Backend
from pretrain.plugins.host.discovery import Role

if TYPE_CHECKING:
    from pretrain.plugins.contract import Version
    from pretrain.plugins.host.discovery import Installed


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Plugin:
    """An imported plugin."""

    installed: Installed
    hooks: Any  # the module (or object) whose functions carry the `hookimpl` mark
    contract: tuple[int, int] = CONTRACT  # that it was written for


def load_plugin(installed: Installed) -> Plugin:
    """Import a plugin; raises BackendError, which names the provider, the cause and what to do."""
    require_core(installed)
    entry = EntryPoint(name=installed.name, value=installed.target, group="")
    try:
        hooks = entry.load()
        if inspect.isclass(hooks) and not issubclass(hooks, Backend):
            hooks = hooks()  # whose methods are the hooks
    except (Exception, SystemExit) as exc:  # a third party's module may raise anything at import
        msg = f"{installed.label} failed to import: {cause(exc)}\n{_remedy(installed, exc)}"
        raise BackendError(msg) from exc
    if inspect.isclass(hooks) or inspect.isroutine(hooks):
        what = "the class" if inspect.isclass(hooks) else "the function"
        msg = (
            f"{installed.label}: its entry point '{installed.target}' names {what} {hooks.__name__}, which has no "
            "hooks.\nName the module whose functions are marked @hookimpl; pretrain_backend returns the device."
        )
        raise BackendError(msg)
    return Plugin(installed=installed, hooks=hooks, contract=contract_of(installed, hooks))


def cause(exc: BaseException) -> str:
    """Return an exception as one line of at most 200 characters."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    text = f"{type(exc).__name__}: {lines[0]}" if lines else type(exc).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


def _remedy(installed: Installed, exc: BaseException) -> str:
    missing = exc.name if isinstance(exc, ModuleNotFoundError) else None
    distribution = installed.distribution or "<its distribution>"
    if missing and f"{installed.target.partition(':')[0]}.".startswith(f"{missing}."):
        first = f"Its own files are missing: install {distribution} again, from its folder or wheel"
    elif missing:
        first = f"Install '{missing}' into this environment"
    else:
        first = "PRETRAIN_TRACEBACK=1 shows where"
    otherwise = {
        Role.BACKEND: ", or pass another --backend (`pretrain backends` lists them).",
        Role.KERNELS: f", or remove the plugin: pip uninstall {distribution}",
        Role.REFERENCE: "",
    }
    return first + otherwise[installed.role]


def require_core(installed: Installed) -> None:
    """Check that the distribution's dependency on pretrain allows this version, also if pip's check was skipped."""
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
    """Return the contract that a plugin was written for; raises BackendError for one that is not supported."""
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
