"""A run of checks in a thread, while the main thread shows that the rank lives and sees what does not end."""

from __future__ import annotations

import time
from concurrent.futures import wait
from typing import TYPE_CHECKING

from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.guard import failed
from pretrain.tools.doctor.ranks.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.tools.doctor.ranks.board import Board

_PERIOD = 0.1


def run_watched(call: Callable[[], None], board: Board) -> list[Finding]:
    """Call it in a thread; return when it has ended, or has said nothing for the board's `timeout`.

    Args:
        call: says what it does by `board.doing` before anything that may take seconds.
        board: of this rank, which says all the time that the rank lives.

    Returns:
        nothing where it has ended; else one finding that is wrong and says what did not end.

    Raises:
        Exception: whatever `call` raises, but for the end of the process that a library asked for: a finding.
    """
    future = Worker(None).start(call)
    while not wait([future], _PERIOD).done:
        board.beat()
        if time.monotonic() - board.spoken > board.timeout:
            return [_without_end(board.words, board.timeout)]
    error = future.exception()
    if isinstance(error, SystemExit):
        return [failed(board.words, error)]
    if error is not None:
        raise error
    return []


def _without_end(doing: str, timeout: float) -> Finding:
    return Finding(
        check=doing,
        verdict=Verdict.WRONG,
        text=f"no end within {timeout:g} s of: {doing}; the checks after it are left out",
        remedy="Look at what it needs: a device, a driver or a file system that does not answer (`py-spy dump --pid`).",
    )
