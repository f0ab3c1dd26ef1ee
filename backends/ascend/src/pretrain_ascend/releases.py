"""Which CANN, torch and torch_npu belong together, by Huawei's table."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path

PAIRS = {
    "8.3": ("2.6.0.post3", "2.7.1", "2.8.0"),
    "8.5": ("2.6.0.post5", "2.7.1.post2", "2.8.0.post2", "2.9.0"),
    "9.0": ("2.7.1.post4", "2.8.0.post4", "2.9.0.post2"),
    "9.1": ("2.7.1.post8", "2.9.0.post6", "2.10.0.post4", "2.11.0", "2.12.0"),
}
"""CANN -> torch_npu: COMPATIBILITY.en.md of Ascend/pytorch, commit 9e73e708 (21 August 2026), from CANN 8.3 on.

The release of torch is the number before ".post". torch_npu 2.13.0, which is on PyPI, is in no row of it.
"""


def cann() -> str:
    """Return the version of the CANN that is installed, such as "8.5.0" or "8.3.RC1"; "" where nothing says it.

    torch_npu is asked first, which must have been imported; then the files that CANN's installer leaves.
    """
    try:
        found = str(import_module("torch_npu")._C._get_cann_version("CANN"))  # noqa: SLF001  it has no public name
    except Exception:  # noqa: BLE001  a release without it, or a CANN that does not answer
        found = ""
    return found or _written(Path(os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH") or "/-"))


def unpaired(cann: str, torch_npu: str) -> str:
    """Return how a pair is not of Huawei's table; "" where it is, or CANN's version is not known."""
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


def _written(toolkit: Path) -> str:
    names = ("*-linux/ascend_*_install.info", "version.info", "*/version.info")
    for place in (path for name in names for path in sorted(toolkit.glob(name))):
        version = re.search(r"^version\s*=\s*(\S+)", place.read_text(errors="replace"), re.IGNORECASE | re.MULTILINE)
        if version:
            return version[1]
    return ""
