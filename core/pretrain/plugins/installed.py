"""Libraries of a plugin, and its own files, imported only when they are needed.

Listing plugins and negotiating kernels must neither import a vendor's library nor fail with it: an import may take
seconds, and a package may be installed while its extension modules are not.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from pretrain.plugins.offer import Answer
    from pretrain.plugins.requests import Request


def answers(package: str, request: Request) -> Answer:
    """Import the package's module of the request's operation, and return what its function `answers` says.

    `answers("pretrain_cuda", request)` calls `pretrain_cuda.attention.answers(request)` for an attention.
    """
    return cast("Answer", import_module(f"{package}.{request.operation}").answers(request))


def has(module: str) -> bool:
    """Tell whether a module can be found. Neither it nor its parent packages are imported."""
    *parents, name = module.split(".")
    folders = None
    for parent in parents:
        spec = _find(parent, folders)
        if spec is None or spec.submodule_search_locations is None:
            return False
        folders = list(spec.submodule_search_locations)
    return _find(name, folders) is not None


def version(distribution: str) -> str:
    """Return the installed version of a distribution ("2.13.0"); "" if pip knows none."""
    return _version(distribution, tuple(sys.path))


@cache
def _version(distribution: str, _searched: tuple[str, ...]) -> str:
    """Look into the folders of `sys.path`; negotiation asks for the same few hundreds of times."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def provider(distribution: str) -> str:
    """Return name and version for `Offer.provider` ("apex 0.1"), or the bare name if pip knows no version."""
    return f"{distribution} {version(distribution)}".rstrip()


def import_failure(module: str) -> str:
    """Import a module; return "" or the error as one line of at most 300 characters ("OSError: libascendcl.so ...")."""
    try:
        import_module(module)
    except Exception as error:  # noqa: BLE001  a missing shared library shows as any of several errors
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return ""


def _find(name: str, folders: list[str] | None) -> ModuleSpec | None:
    if folders is not None:
        return PathFinder.find_spec(name, folders)
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
