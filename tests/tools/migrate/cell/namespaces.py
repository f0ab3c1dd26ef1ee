"""Whether this machine has namespaces for a cell."""

from __future__ import annotations

import functools
import shutil
import subprocess

import pytest

WITHOUT = "no bash, or no user namespaces, on this machine"


@functools.cache
def has_cells() -> bool:
    """Say whether scripts can be run in a cell here."""
    if not shutil.which("bash") or not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "-rUmnpi", "--fork", "true"], capture_output=True, check=False).returncode == 0


def skip_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip a test at its first script, on a machine without cells."""
    if not has_cells():
        monkeypatch.setattr("pretrain.tools.migrate.cell.trials.run_in_cell", lambda _: pytest.skip(WITHOUT))


needs_cell = pytest.mark.skipif(not has_cells(), reason=WITHOUT)
