"""Entry points of installed distributions, as messages name them; no torch, and none of them is imported."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

_REQUIREMENT = re.compile(r"pretrain\s*(?:\[[^]]*\])?\s*\(?([<>=!~][^;()]*)\)?", re.IGNORECASE)
"""A distribution's dependency on pretrain, with extras or without, but without a condition."""


class Role(StrEnum):
    """Purpose of a plugin, as messages name it."""

    KERNELS = "plugin"
    BACKEND = "backend"
    REFERENCE = "reference"
    OPTIMIZER = "optimizer"
    LOGGER = "logger"


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


def all_entry_points() -> EntryPoints:
    """Return the entry points of all groups, read again where a package came or went in a folder of sys.path."""
    return _read_entry_points(tuple((folder, _changed_at(folder)) for folder in sys.path))


@lru_cache(maxsize=1)
def _read_entry_points(folders: tuple[tuple[str, int], ...]) -> EntryPoints:  # noqa: ARG001  the cache's key
    found: Any = entry_points()  # in Python 3.11 of another class, with the same methods
    return cast("EntryPoints", found)


def _changed_at(folder: str) -> int:
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return 0


def registered(group: str, role: Role) -> list[Installed]:
    """Return what a group of entry points has, sorted by name; one that two distributions claim is there twice."""
    # Sorted, because the order of entry points follows directory listings: it would differ between nodes.
    found = [described(entry, role) for entry in all_entry_points().select(group=group)]
    return sorted(found, key=lambda plugin: (plugin.name, plugin.provider))


def described(entry: EntryPoint, role: Role) -> Installed:
    """Return what an entry point and its distribution say."""
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


def registered_twice(found: list[Installed]) -> str:
    """Return the error message for several plugins of one name."""
    providers = " and ".join(each.provider for each in found)
    others = list(dict.fromkeys(each.distribution for each in found if each.distribution != "pretrain"))
    return (
        f"{found[0].role} '{found[0].name}' is registered by {providers}.\n"
        f"Keep one: pip uninstall {' or '.join(filter(None, others)) or '<the other one>'}"
    )
