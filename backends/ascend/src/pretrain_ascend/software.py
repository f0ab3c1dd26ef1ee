"""Software that an NPU needs: torch_npu for this torch, CANN, and the pairs of them that Huawei releases together.

Importing torch_npu opens no device.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pretrain.plugins import installed
from pretrain.plugins.backend import Remark

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNTIME = "libascendcl.so"
"""CANN's runtime, which torch_npu loads when it is imported."""

PAIRS = {
    "8.3": ("2.6.0.post3", "2.7.1", "2.8.0"),
    "8.5": ("2.6.0.post5", "2.7.1.post2", "2.8.0.post2", "2.9.0"),
    "9.0": ("2.7.1.post4", "2.8.0.post4", "2.9.0.post2"),
    "9.1": ("2.7.1.post8", "2.9.0.post6", "2.10.0.post4", "2.11.0", "2.12.0"),
}
"""CANN -> torch_npu: COMPATIBILITY.en.md of Ascend/pytorch, commit 9e73e708 (21 August 2026), from CANN 8.3 on.

The release of torch is the number before ".post". torch_npu 2.13.0, which is on PyPI, is in no row of it.
"""


def version() -> str:
    """Return the version of torch_npu that pip knows, "" where it is not installed."""
    return installed.version("torch_npu")


def provider() -> str:
    """Return "torch_npu 2.13.0", or the bare name where it is not installed: the device may be a named one."""
    return installed.provider("torch_npu")


def release(text: str) -> str:
    """Return the release of a version: "2.13.0" of "2.13.0+cpu" or "2.13.0.post1"."""
    found = re.match(r"\d+\.\d+\.\d+", text)
    return found[0] if found else text


def missing() -> tuple[str, str] | None:
    """Return what is missing and how to get it; None where torch_npu is imported."""
    wanted = release(torch.__version__)
    remedy = f"pip install torch_npu=={wanted}, in an environment whose torch is of that version."
    if not version():
        if not installed.has("torch_npu"):
            return "torch_npu is not installed", f"{remedy}\nIt needs Huawei's driver and CANN on this machine."
        return "torch_npu can be imported, but pip knows no version of it", remedy
    if release(version()) != wanted:
        return f"torch_npu {version()} is installed for torch {torch.__version__}; the versions must agree", remedy
    return _failure()


def has_cann() -> bool:
    """Return whether CANN's runtime can be loaded, which opens no device."""
    try:
        ctypes.CDLL(RUNTIME)
    except OSError:
        return False
    return True


def cann() -> str:
    """Return the version of the CANN that is installed, such as "8.5.0" or "8.3.RC1"; "" if nothing tells it.

    torch_npu is asked first, which must have been imported; then the files that CANN's installer leaves.
    """
    try:
        found = str(import_module("torch_npu")._C._get_cann_version("CANN"))  # noqa: SLF001  it has no public name
    except Exception:  # noqa: BLE001  a release without it, or a CANN that does not answer
        found = ""
    return found or _written(Path(os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH") or "/-"))


def unpaired(cann: str, torch_npu: str) -> str:
    """Return the reason that a pair is not in Huawei's table; "" where it is, or CANN's version is not known."""
    number = re.match(r"\d+\.\d+", cann)
    if not number:
        return ""
    fitting = PAIRS.get(number[0], ())
    if torch_npu in fitting:
        return ""
    paired = [version for version, releases in PAIRS.items() if torch_npu in releases]
    if paired:
        return f"Huawei pairs torch_npu {torch_npu} with CANN {' and '.join(paired)}, not {cann}"
    if fitting:
        return f"Huawei pairs CANN {cann} with torch_npu {', '.join(fitting)}, not {torch_npu}"
    return f"Huawei's table has neither CANN {cann} nor torch_npu {torch_npu}"


def health(*, some_are_hidden: bool) -> Iterator[Remark]:
    """Yield remarks about torch_npu, CANN and the NPUs of this machine.

    Args:
        some_are_hidden: not all NPUs of the machine are used: a fault may be of another one.
    """
    if missing() is not None:
        return  # `availability` says so
    found = cann()
    reason = unpaired(found, version())
    remedy = "docs/ascend.md has Huawei's table of the CANN that each release needs." if reason else ""
    text = reason or f"{provider()} for torch {release(torch.__version__)}, CANN {found or 'of an unknown version'}"
    yield Remark(subject="torch_npu", verdict="look" if reason else "ok", text=text, remedy=remedy)
    yield from npu_remarks(_npu_smi(), some_are_hidden=some_are_hidden)


def npu_remarks(table: str, *, some_are_hidden: bool) -> Iterator[Remark]:
    """Yield a remark for each NPU that is not well, or one where all are; `table` is the output of `npu-smi info`."""
    states = re.findall(r"^\|\s*(\d+)\s+([A-Za-z0-9][\w-]*)\s*\|\s*([A-Za-z]+)\s*\|", table, re.MULTILINE)
    for number, name, state in states:
        if state != "OK":
            serious = state != "Warning" and not some_are_hidden
            yield Remark(
                subject="health",
                verdict="wrong" if serious else "look",
                text=f"NPU {number} ({name}): {state}",
                remedy=f"npu-smi info -t health -i {number} shows the code of the fault.",
            )
    if states and all(state == "OK" for _, _, state in states):
        yield Remark(subject="health", verdict="ok", text=f"{len(states)} NPUs of this machine are OK")


def _npu_smi() -> str:
    program = shutil.which("npu-smi")
    if program is None:
        return ""
    try:
        return subprocess.run([program, "info"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _failure() -> tuple[str, str] | None:
    cause = installed.import_failure("torch_npu")
    if not cause:
        return None
    if not has_cann():
        return (
            f"CANN is not available: {RUNTIME} cannot be loaded",
            "Install the CANN toolkit, and source the set_env.sh of its folder in this shell.",
        )
    fault = f"torch_npu {version()} is installed, but its import failed: {cause}"
    return fault, "docs/ascend.md has Huawei's table of the CANN that each release needs."


def _written(toolkit: Path) -> str:
    names = ("*-linux/ascend_*_install.info", "version.info", "*/version.info")
    for place in (path for name in names for path in sorted(toolkit.glob(name))):
        version = re.search(r"^version\s*=\s*(\S+)", place.read_text(errors="replace"), re.IGNORECASE | re.MULTILINE)
        if version:
            return version[1]
    return ""
