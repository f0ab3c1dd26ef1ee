"""This rank's part of the steps: taken in a thread, and answered on the board."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pretrain.tools.doctor.ranks.step import ERROR, STUCK, VALUE
from pretrain.tools.doctor.ranks.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Future

    import torch

    from pretrain.tools.doctor.ranks.board import Board
    from pretrain.tools.doctor.ranks.step import Step


class OwnPart:
    """This rank's part of the steps."""

    def __init__(self, board: Board, device: torch.device | None) -> None:
        """Begin with no step."""
        self._board = board
        self._worker = Worker(device)
        self._future: Future[Any] | None = None
        self._number = -1
        self._stuck = False

    def begin(self, number: int, step: Step, orders: Any) -> None:
        """Begin to measure."""
        self._number = number
        self._board.doing(step.name)
        self._future = self._worker.start(partial(step.measure, orders))

    def tend(self) -> None:
        """Say that this rank lives, and answer if the step has ended, or has said nothing for too long."""
        self._board.beat()
        if self._future is None:
            return
        if self._future.done():
            self._board.write(answer_key(self._number, self._board.world.rank), _answer(self._future))
            self._future = None
        elif not self._stuck and time.monotonic() - self._board.spoken > self._board.timeout:
            self._stuck = True
            self._board.write(answer_key(self._number, self._board.world.rank), {STUCK: self._board.words})

    def busy(self) -> bool:
        """Say whether the thread still works, perhaps without end."""
        return self._future is not None


def answer_key(number: int, rank: int) -> str:
    """Return the board's key of a rank's answer to a step."""
    return f"answer/{number}/{rank}"


def answers(board: Board, number: int, ranks: Iterable[int]) -> Mapping[int, Mapping[str, Any]]:
    """Return the answers of those of the ranks that have answered."""
    keys = {answer_key(number, rank): rank for rank in ranks}
    return {keys[key]: found for key, found in board.read(keys).items()}


def _answer(future: Future[Any]) -> dict[str, Any]:
    error = future.exception()
    if error is None:
        return {VALUE: future.result()}
    text = (str(error).splitlines() or [""])[0]
    return {ERROR: f"{type(error).__name__}: {text}"}
