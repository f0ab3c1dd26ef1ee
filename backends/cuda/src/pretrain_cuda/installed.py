"""Which libraries are here, without importing them: a module may be there while its package's wrappers are gone."""

from __future__ import annotations

import importlib.metadata
import importlib.util


def has(module: str) -> bool:
    """Say whether a module can be found; its parents are imported, it is not."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def version(distribution: str) -> str:
    """Return "apex 0.1", or the bare name where pip knows no version."""
    try:
        return f"{distribution} {importlib.metadata.version(distribution)}"
    except importlib.metadata.PackageNotFoundError:
        return distribution
