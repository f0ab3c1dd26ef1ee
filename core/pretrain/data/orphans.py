"""End worker processes together with the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import threading

from pretrain.exit_codes import ExitCode


def exit_with_parent() -> None:
    """Exit this worker when its parent ends, even if the parent was killed; call it once in the worker.

    Otherwise a pool's worker would wait for its queue forever, and a data loader's worker for some seconds.
    """
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(ExitCode.FAILURE)
