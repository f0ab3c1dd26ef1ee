"""Installed plugins. Reading entry points imports none of them."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretrain import __version__
from pretrain.errors import BackendError, did_you_mean
from pretrain.plugins import BACKENDS, PLUGINS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

FIRST_PARTY = ("ascend", "cuda")
"""Backends of this repository with a distribution of their own: `pretrain-<name>`, in `backends/<name>`."""

_REQUIREMENT = re.compile(r"pretrain\s*(?:\[[^]]*\])?\s*\(?([<>=!~][^;()]*)\)?", re.IGNORECASE)
"""A distribution's dependency on pretrain, with extras or without, but without a condition."""


class Role(StrEnum):
    """Purpose that a plugin was loaded for, as messages name it."""

    KERNELS = "plugin"
    BACKEND = "backend"
    REFERENCE = "reference"


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """An installed plugin, not imported."""

    role: Role
    name: str  # of the entry point; for a backend the value of `--backend`
    target: str  # "package.module" or "package.module:object"
    distribution: str  # what pip calls it, "" where the entry point does not say
    version: str
    requires: str = ""  # versions of pretrain that the distribution allows, ">=1.2,<2"

    @property
    def provider(self) -> str:
        """The distribution and its version: "pretrain-cuda 0.1.0"."""
        return f"{self.distribution or 'unknown distribution'} {self.version}".rstrip()

    @property
    def label(self) -> str:
        """Name in messages: "backend 'cuda' (pretrain-cuda 0.1.0)"."""
        return f"{self.role} '{self.name}' ({self.provider})"


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
    return _installed(BACKENDS, Role.BACKEND)


def installed_plugins() -> list[Installed]:
    """Return every installed plugin of the group `pretrain.plugins`, sorted by name."""
    return _installed(PLUGINS, Role.KERNELS)


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


def registered_twice(found: list[Installed]) -> str:
    """Return the error message for several backends of one name."""
    providers = " and ".join(backend.provider for backend in found)
    others = list(dict.fromkeys(backend.distribution for backend in found if backend.distribution != "pretrain"))
    return (
        f"backend '{found[0].name}' is registered by {providers}.\n"
        f"Keep one: pip uninstall {' or '.join(filter(None, others)) or '<the other one>'}"
    )


def unread_groups() -> list[str]:
    """Return a line for each entry point in a group "pretrain..." that pretrain does not read."""
    groups = sorted(group for group in entry_points().groups if group.startswith("pretrain"))
    return [
        f"{_describe(entry, Role.KERNELS).provider} registers '{entry.name}' in the entry-point group '{group}', "
        f"which pretrain does not read.{did_you_mean(group, (BACKENDS, PLUGINS))}"
        for group in groups
        if group not in {BACKENDS, PLUGINS}
        for entry in entry_points(group=group)
    ]


def _entry_points(group: str) -> EntryPoints:
    """Return the group's entry points; they are read again where a package came or went in a folder of sys.path."""
    return _read_entry_points(group, tuple((folder, _changed_at(folder)) for folder in sys.path))


@lru_cache(maxsize=4)
def _read_entry_points(group: str, folders: tuple[tuple[str, int], ...]) -> EntryPoints:  # noqa: ARG001  the cache's key
    return entry_points(group=group)


def _changed_at(folder: str) -> int:
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return 0


def _installed(group: str, role: Role) -> list[Installed]:
    # Sorted, because the order of entry points follows directory listings: it would differ between nodes.
    found = [_describe(entry, role) for entry in _entry_points(group)]
    return sorted(found, key=lambda plugin: (plugin.name, plugin.provider))


def _describe(entry: EntryPoint, role: Role) -> Installed:
    allowed = [_REQUIREMENT.fullmatch(line.strip()) for line in _told(entry, "requires") or ()]
    return Installed(
        role=role,
        name=entry.name,
        target=entry.value,
        distribution=_told(entry, "name") or "",
        version=_told(entry, "version") or "",
        requires=",".join(match[1].strip() for match in allowed if match),
    )


def _told(entry: EntryPoint, what: Literal["name", "version", "requires"]) -> Any:
    """Return what the distribution tells of itself; None where there is none, or it has no METADATA."""
    try:
        return getattr(entry.dist, what)
    except (AttributeError, FileNotFoundError, KeyError, TypeError):  # by the release, or of importlib_metadata
        return None
