"""Faults from outside a rank: signals to processes, and damage to files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from pretrain.checkpoint.folder import LATEST

if TYPE_CHECKING:
    from pathlib import Path

    from chaos.scene import Scene

AT_ONCE, BETWEEN = 0.025, 3.0
"""Seconds between two signals: of Slurm, which are one request; and of somebody who means it."""

ENDING = 20.0
"""Seconds for the end of a launcher that was killed, or asked twice; less than a rank waits at the gate."""

_ADVICE = re.compile(r"write (\d+) into ([^\n]+?), and start again")


def kill_first_rank(scene: Scene) -> None:
    """Send rank 0 a SIGKILL."""
    os.kill(scene.process_of(0), signal.SIGKILL)


def kill_last_rank(scene: Scene) -> None:
    """Send the last rank a SIGKILL."""
    os.kill(scene.process_of(scene.ranks - 1), signal.SIGKILL)


def kill_launcher(scene: Scene) -> None:
    """Send the launcher, or that of the last node, a SIGKILL."""
    launcher = scene.commands[-1].process
    launcher.kill()
    _wait_for_end(launcher)


def stop_last_rank(scene: Scene) -> None:
    """Send the last rank a SIGSTOP."""
    os.kill(scene.process_of(scene.ranks - 1), signal.SIGSTOP)


def kill_worker(scene: Scene) -> None:
    """Send a process that reads data for rank 0 a SIGKILL.

    Raises:
        LookupError: there is none.
    """
    if not scene.said["workers"]:
        raise LookupError
    os.kill(scene.member(scene.said["workers"][0]), signal.SIGKILL)


def terminate_as_slurm(scene: Scene) -> None:
    """Send the launcher a SIGTERM, and another one at once."""
    launcher = scene.commands[0].process
    launcher.terminate()
    time.sleep(AT_ONCE)
    launcher.terminate()


def terminate_twice(scene: Scene) -> None:
    """Send the launcher a SIGTERM, and later another one, before a rank could save; wait for its end.

    Raises:
        LookupError: it had ended before the second one.
    """
    launcher = scene.commands[0].process
    launcher.terminate()
    time.sleep(BETWEEN)
    if launcher.poll() is not None:
        raise LookupError
    launcher.terminate()
    _wait_for_end(launcher)


def truncate_newest(scene: Scene) -> None:
    """Cut the largest file of the newest checkpoint in two, and kill a rank."""
    file = _largest_file(scene)
    os.truncate(file, file.stat().st_size // 2)
    kill_last_rank(scene)


def flip_byte(scene: Scene) -> None:
    """Flip all bits of one byte in the largest file of the newest checkpoint, and kill a rank."""
    file = _largest_file(scene)
    with file.open("r+b") as stream:
        stream.seek(file.stat().st_size // 2)
        (byte,) = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 0xFF]))
    kill_last_rank(scene)


def take_intact(scene: Scene) -> None:
    """Do what the message about a damaged checkpoint says: name the newest intact one in LATEST.

    Where it says nothing, nothing is done: then the same command ends again.
    """
    advice = _ADVICE.search(scene.output)
    if advice is not None and advice[2].endswith(LATEST):
        with suppress(OSError):
            (scene.checkpoints.path / LATEST).write_text(f"{advice[1]}\n")


def _wait_for_end(launcher: subprocess.Popen[bytes]) -> None:
    """Wait a little; that one has not ended is seen at the limit of the command."""
    with suppress(subprocess.TimeoutExpired):
        launcher.wait(ENDING)


def _largest_file(scene: Scene) -> Path:
    """Return the largest file of the newest complete checkpoint."""
    folder = scene.checkpoints
    return max(folder.directory(folder.iterations()[-1]).iterdir(), key=lambda file: file.stat().st_size)
