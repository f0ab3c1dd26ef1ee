"""Libraries that are here, without importing them: a module may be there while its package's wrappers are gone."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


def has(module: str) -> bool:
    """Say whether a module can be found; neither it nor its parents are imported, which may take long, or fail."""
    *parents, name = module.split(".")
    folders = None
    for parent in parents:
        spec = _find(parent, folders)
        if spec is None or spec.submodule_search_locations is None:
            return False
        folders = list(spec.submodule_search_locations)
    return _find(name, folders) is not None


def _find(name: str, folders: list[str] | None) -> ModuleSpec | None:
    if folders is not None:
        return PathFinder.find_spec(name, folders)
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def version(distribution: str) -> str:
    """Return "apex 0.1", or the bare name where pip knows no version."""
    try:
        return f"{distribution} {importlib.metadata.version(distribution)}"
    except importlib.metadata.PackageNotFoundError:
        return distribution
