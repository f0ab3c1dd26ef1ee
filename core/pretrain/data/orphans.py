"""Worker processes that do not outlive the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import threading


def leave_with_parent() -> None:
    """Let this worker end when its parent does, even if that was killed; call it once in the worker.

    By itself a pool's worker would wait for its queue for ever, and a data loader's some seconds.
    """
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
