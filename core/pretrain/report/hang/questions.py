"""Questions of other ranks, found in the shared run directory.

They are looked for in a thread of their own: a disk that does not answer must not keep the watch from ending its rank.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from pretrain.report.hang.gathering import asked_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Questions:
    """The folders in which another rank asks for the states of all: because of a hang, or by SIGUSR1."""

    def __init__(self, folder: Path, period: float, answer: Callable[[Path], None]) -> None:
        """Take what is watched; nothing is looked for yet.

        Args:
            folder: that exists as soon as a rank of this start hangs; the answers' to SIGUSR1 are beside it.
            period: seconds between two looks.
            answer: lays down this rank's state in a folder, once for each.
        """
        self._folder, self._period, self._answer = folder, period, answer
        self._hang, self._end = threading.Event(), threading.Event()
        self._number = 0  # of the latest folder beside it
        self._own: set[Path] = set()
        self._answered = float("-inf")
        self._thread = threading.Thread(target=self._look, name="hang questions", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; does not wait for the disk."""
        self._end.set()

    @property
    def of_a_hang(self) -> bool:
        """True once a rank has asked because of a hang."""
        return self._hang.is_set()

    def leave_out(self, folder: Path) -> None:
        """Do not answer in a folder: this rank asks there itself."""
        self._own.add(folder)

    def answered_within(self, seconds: float) -> bool:
        """Say whether a question of another rank by SIGUSR1 was answered in the last so many seconds."""
        return time.monotonic() - self._answered < seconds

    def _look(self) -> None:
        while not self._end.wait(self._period):
            with suppress(Exception):  # a server of files that was away for a moment; the next look is soon
                self._look_once()

    def _look_once(self) -> None:
        if not self._hang.is_set() and self._folder.exists():
            self._hang.set()
            self._answer(self._folder)
        following = asked_folder(self._folder, self._number + 1)
        if not following.exists():
            return
        self._number += 1
        if following not in self._own:
            self._answered = time.monotonic()
            self._answer(following)
