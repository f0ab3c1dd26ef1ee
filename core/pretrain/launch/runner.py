"""DeepSpeed's launcher in a process of its own: `python -m pretrain.launch.runner BACKEND FOLDER ARGUMENTS...`.

As `python -m deepspeed.launcher.runner ARGUMENTS...`, for the device of the backend, and with errors on the board.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from pretrain.errors import LaunchError, PretrainError
from pretrain.launch.board import Board
from pretrain.launch.processes.failure import Failure
from pretrain.plugins.host.discovery import find_backend
from pretrain.plugins.host.manager import load_alone

_ACCELERATOR = "DS_ACCELERATOR"


def main() -> None:
    """Start the ranks and wait for their end; exit as DeepSpeed does."""
    _, backend, folder, *arguments = sys.argv
    try:
        _run(accelerator(backend), arguments)
    except PretrainError as error:
        failure = Failure.of(error, 0, with_traceback=False)
        failure.write(Board(Path(folder)).failure_file("launcher"))
        sys.exit(failure.exit_code)


def _run(device: str, arguments: list[str]) -> None:
    chosen_by_user = _ACCELERATOR in os.environ
    os.environ.setdefault(_ACCELERATOR, device)
    try:
        # By their names: launching needs no deepspeed where no hostfile is given.
        importlib.import_module("deepspeed.accelerator").get_accelerator()
        runner = importlib.import_module("deepspeed.launcher.runner")
        # What is chosen here is for the launcher; srun would hand it on to the ranks, which choose for themselves.
        if not chosen_by_user:
            del os.environ[_ACCELERATOR]
        runner.main(arguments)
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        msg = f"DeepSpeed's launcher: {error}"
        raise LaunchError(msg) from error


def accelerator(backend_name: str) -> str:
    """Return DeepSpeed's word for the backend's device, which decides whose environment variables go to all hosts.

    Left to itself DeepSpeed takes the device whose library it can import. A device that it does not know has no
    variables there; the file .deepspeed_env has a user's own.
    """
    device = load_alone(find_backend(backend_name)).backend.device_type
    found = importlib.util.find_spec("deepspeed")  # not of a module inside: that would import deepspeed
    folders = found.submodule_search_locations if found else None
    known = any((Path(folder) / "accelerator" / f"{device}_accelerator.py").exists() for folder in folders or ())
    return device if known else "cpu"


if __name__ == "__main__":
    main()
