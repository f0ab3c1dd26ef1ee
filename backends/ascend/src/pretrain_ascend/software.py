"""Whether torch_npu and CANN are here, and fit torch. Importing torch_npu opens no device."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import re
from importlib import import_module

import torch

RUNTIME = "libascendcl.so"
"""CANN's runtime, which torch_npu loads when it is imported."""


def version() -> str:
    """Return the version of torch_npu that pip knows, "" where it is not installed."""
    try:
        return importlib.metadata.version("torch_npu")
    except importlib.metadata.PackageNotFoundError:
        return ""


def provider() -> str:
    """Return "torch_npu 2.13.0", or the bare name where it is not installed: the device may be a named one."""
    return f"torch_npu {version()}".rstrip()


def release(text: str) -> str:
    """Return the release of a version: "2.13.0" of "2.13.0+cpu" or "2.13.0.post1"."""
    found = re.match(r"\d+\.\d+\.\d+", text)
    return found[0] if found else text


def missing() -> tuple[str, str] | None:
    """Return what is missing and how to get it; None where torch_npu is imported."""
    wanted = release(torch.__version__)
    remedy = f"pip install torch_npu=={wanted}, in an environment whose torch is of that version."
    if not version():
        if importlib.util.find_spec("torch_npu") is None:
            return "torch_npu is not installed", f"{remedy}\nIt needs Huawei's driver and CANN on this machine."
        return "torch_npu is here, but of no version that pip knows", remedy
    if release(version()) != wanted:
        return f"torch_npu {version()} is installed for torch {torch.__version__}; the versions must agree", remedy
    return _failure()


def has_cann() -> bool:
    """Say whether CANN's runtime can be loaded, which opens no device."""
    try:
        ctypes.CDLL(RUNTIME)
    except OSError:
        return False
    return True


def _failure() -> tuple[str, str] | None:
    try:
        import_module("torch_npu")
    except Exception as error:  # noqa: BLE001  a library of CANN that is missing shows as any of several errors
        if not has_cann():
            return (
                f"CANN is not here: {RUNTIME} cannot be loaded",
                "Install the CANN toolkit, and source the set_env.sh of its folder in this shell.",
            )
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        fault = f"torch_npu {version()} is installed, but its import failed: {cause[:300]}"
        return fault, "docs/ascend.md has Huawei's table of the CANN that each release needs."
    return None
