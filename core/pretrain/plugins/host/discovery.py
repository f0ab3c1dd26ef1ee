"""Installed plugins, and the import of one. Reading entry points imports none of them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from pretrain import __version__
from pretrain.distributions import Installed, Role, all_entry_points, described, registered, registered_twice
from pretrain.errors import BackendError, did_you_mean
from pretrain.plugins import BACKENDS, CONTRACT, PLUGINS
from pretrain.plugins.backend import Backend
from pretrain.recipe.sections.optimizer import OPTIMIZERS
from pretrain.recipe.sections.outputs import LOGGERS

if TYPE_CHECKING:
    from pretrain.plugins.contract import Version

FIRST_PARTY = ("ascend", "cuda")
"""Backends of this repository with a distribution of their own: `pretrain-<name>`, in `backends/<name>`."""

_READ = (BACKENDS, PLUGINS, OPTIMIZERS, LOGGERS)
"""The entry-point groups that are read."""


REFERENCE = Installed(
    role=Role.REFERENCE,
    name="reference",
    target="pretrain.reference.plugin",
    distribution="pretrain",
    version=__version__,
)
"""The pure-torch kernels: an ordinary plugin that every run has and that is asked last."""


def installed_backends() -> list[Installed]:
    """Return every installed backend, sorted by name; a name that two distributions claim is there twice."""
    return registered(BACKENDS, Role.BACKEND)


def installed_plugins() -> list[Installed]:
    """Return every installed plugin of the group `pretrain.plugins`, sorted by name."""
    return registered(PLUGINS, Role.KERNELS)


def find_backend(name: str) -> Installed:
    """Return the backend of this name; raises BackendError where no distribution, or more than one, registers it."""
    backends = installed_backends()
    found = [backend for backend in backends if backend.name == name]
    if not found:
        raise BackendError(not_installed(name, [backend.name for backend in backends]))
    if len(found) > 1:
        raise BackendError(registered_twice(found))
    return found[0]


def not_installed(name: str, names: list[str]) -> str:
    """Return the error message for a backend that is not registered; `names` are the registered ones."""
    there = ", ".join(dict.fromkeys(names)) or "none"
    if name not in FIRST_PARTY:
        hint = did_you_mean(name.lower(), [*names, *FIRST_PARTY])
        return (
            f"backend '{name}' is not installed. Installed: {there}.{hint}\n"
            "`pretrain backends` lists every backend; a new one comes with `pip install <its distribution>`."
        )
    in_checkout, by_wheel = how_to_get(name)
    return (
        f"backend '{name}' is not installed. Installed: {there}.\n"
        f"Get it: `{in_checkout}` in a checkout of this project, or `{by_wheel}` with a wheel of `make build`.\n"
        f"Or pass an installed backend: --backend {names[0] if names else 'NAME'}"
    )


def how_to_get(name: str) -> tuple[str, str]:
    """Return the commands that install a first-party backend: in a checkout of this project, and from its wheel."""
    return f"pip install ./backends/{name}", f"pip install pretrain_{name}-*.whl"


def unread_groups() -> list[str]:
    """Return a line for each entry point in a group "pretrain..." that pretrain does not read."""
    found = all_entry_points()
    groups = sorted(group for group in found.groups if group.startswith("pretrain"))
    return [
        f"{described(entry, Role.KERNELS).provider} registers '{entry.name}' in the entry-point group '{group}', "
        f"which pretrain does not read.{did_you_mean(group, _READ)}"
        for group in groups
        if group not in _READ
        for entry in found.select(group=group)
    ]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Plugin:
    """An imported plugin."""

    installed: Installed
    hooks: Any  # the module (or object) whose functions carry the `hookimpl` mark
    contract: tuple[int, int] = CONTRACT  # that it was written for


def load_plugin(installed: Installed) -> Plugin:
    """Import a plugin; raises BackendError, which names the provider, the cause and what to do."""
    hooks = imported(installed)  # of an object its methods
    if inspect.isclass(hooks) or inspect.isroutine(hooks):
        what = "the class" if inspect.isclass(hooks) else "the function"
        msg = (
            f"{installed.label}: its entry point '{installed.target}' names {what} {hooks.__name__}, which has no "
            "hooks.\nName the module whose functions are marked @hookimpl; pretrain_backend returns the device."
        )
        raise BackendError(msg)
    return Plugin(installed=installed, hooks=hooks, contract=contract_of(installed, hooks))


def imported(installed: Installed) -> Any:
    """Return what an entry point names, of a class an object; raises BackendError as `load_plugin`."""
    require_core(installed)
    entry = EntryPoint(name=installed.name, value=installed.target, group="")
    try:
        found = entry.load()
        return found() if inspect.isclass(found) and not issubclass(found, Backend) else found
    except (Exception, SystemExit) as exc:  # a third party's module may raise anything at import
        msg = f"{installed.label} failed to import: {cause(exc)}\n{_remedy(installed, exc)}"
        raise BackendError(msg) from exc


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
        Role.OPTIMIZER: ", or give another optimizer.name.",
        Role.LOGGER: ", or leave it out of logging.loggers.",
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
