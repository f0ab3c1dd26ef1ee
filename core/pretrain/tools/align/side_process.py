"""Processes of `pretrain` for one side: of this installation, or of another one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import RunError
from pretrain.launch.processes import parent_exit

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAIN = "\nkill_on_parent_exit({parent})\nfrom pretrain.cli.main import main\nmain()\n"
"""The console script `pretrain`, after the text of `parent_exit`: another version may not have that module."""

_PLACES = """
import importlib.util
from pretrain.cli.commands import COMMANDS
COMMANDS["align"]
for name in {names}:
    print(importlib.util.find_spec(name).origin)
"""
_NAMES = ("pretrain", "torch")


def run_pretrain(python: Path | None, words: Sequence[str], *, shows_output: bool = True) -> int:
    """Run `pretrain` in a process of its own, which ends with this one; return its exit code.

    Args:
        python: interpreter of another installation; None for this one.
        words: of the command line.
        shows_output: what it prints goes to standard error; its errors do always.

    Raises:
        RunError: the interpreter cannot be started.
    """
    program = Path(parent_exit.__file__).read_text(encoding="utf-8") + _MAIN.format(parent=os.getpid())
    command = [str(python or sys.executable), "-c", program, *words]
    output = sys.stderr.fileno() if shows_output else subprocess.DEVNULL
    try:
        with subprocess.Popen(command, stdout=output, env=_environment(python)) as process:
            try:
                return process.wait()
            except BaseException:  # a signal that asks this process to end
                process.terminate()
                raise
    except OSError as error:
        raise _not_started(command[0], error) from error


def is_this_installation(python: Path) -> bool:
    """Return True if an interpreter's pretrain and torch are those of this process.

    Raises:
        RunError: it cannot be started, or has no `pretrain align`.
    """
    command = [str(python), "-c", _PLACES.format(names=_NAMES)]
    try:
        done = subprocess.run(command, env=_environment(python), capture_output=True, text=True, check=False)
    except OSError as error:
        raise _not_started(command[0], error) from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        msg = f"{python} has no `pretrain align`: {why}\n--against-python is an installation's interpreter."
        raise RunError(msg)
    here = [spec.origin for name in _NAMES if (spec := importlib.util.find_spec(name)) and spec.origin]
    return list(map(os.path.realpath, done.stdout.split("\n")[: len(_NAMES)])) == list(map(os.path.realpath, here))


def _environment(python: Path | None) -> dict[str, str] | None:
    """Return the variables of another installation's process; None for this one's.

    Neither PYTHONPATH nor the working directory leads to a pretrain then. Other folders stay: CANN's Python packages
    are found by them.
    """
    if python is None:
        return None
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if path and not (Path(path) / "pretrain").is_dir()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(kept), "PYTHONSAFEPATH": "1"}


def _not_started(python: str, error: OSError) -> RunError:
    return RunError(
        f"{python} cannot be started: {error.strerror}\n--against-python is an interpreter: .venv/bin/python."
    )
