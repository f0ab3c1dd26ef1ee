"""Temporary folder in which the ranks of a node leave word for their launcher.

A launcher that is killed with -9 cannot remove its folder; the next launcher on the machine does. A lock
(`flock`) on the folder itself shows which are in use: it ends with its process. systemd-tmpfiles, which removes old
folders from /tmp, leaves alone those that are locked so.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX, _MARK = "pretrain-ranks-", "lock"


class RankFolder:
    """Folder of this launcher.

    Attributes:
        path: of the folder.
    """

    def __init__(self) -> None:
        """Remove the folders of killed launchers, and make this one."""
        _remove_left()
        made = Path(tempfile.mkdtemp(prefix="pretrain-new-"))
        (made / _MARK).touch()  # without it the folder is somebody else's
        self._lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Locked before it has the name by which others find it.
        self.path = made.rename(made.with_name(made.name.replace("pretrain-new-", _PREFIX, 1)))

    def remove(self) -> None:
        """Remove the folder; called once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's; in use (the lock is refused); or removed by another launcher
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (folder / _MARK).unlink()
                shutil.rmtree(folder)
            finally:
                os.close(lock)
