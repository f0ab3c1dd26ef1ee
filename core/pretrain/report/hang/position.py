"""The place in the training where a rank's main thread is."""

from __future__ import annotations

import struct
import time
from collections import deque
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

START, LOAD, STEP, FORWARD_BACKWARD = "start", "load", "interval", "forward-backward"
BETWEEN, LOG, GENERATE, REDUCTION, END = "between", "log", "generate", "gradient reduction", "end"
"""Activities beside the phases of `pretrain.report.timers`."""

FORWARD, BACKWARD = "forward", "backward"
EMBEDDING, OUTPUT = "embedding", "output layer"

_WORDS = (
    *("", START, LOAD, STEP, FORWARD_BACKWARD, BETWEEN, LOG, GENERATE, FORWARD, BACKWARD, EMBEDDING, OUTPUT),
    *("data", "optimizer", "evaluation", "save", END),
)
_CODES = {word: code for code, word in enumerate(_WORDS)}
_LAYOUT = struct.Struct("<6i")
SIZE = _LAYOUT.size
"""Bytes of a position that other processes read."""

_KEPT = 20
"""Steps of which the median is taken."""


class Position:
    """The place in the training, written by the main thread and read by the one that watches it.

    A write is a few plain stores, since there is one for each layer of each micro-batch. Whatever moves counts in
    `beats`. Each write goes to `shared` too, which other processes may read when this one is stopped or dead.

    Attributes:
        iteration: that is being computed, from 1; 0 before the first.
        micro_batch: of the iteration on this rank, from 1; 0 outside of one.
        layer: from 1 over all stages; 0 outside of a layer.
        part: `EMBEDDING` or `OUTPUT` outside of a layer, else empty.
        direction: `FORWARD`, `BACKWARD` or empty.
        activity: a phase of `pretrain.report.timers`, or one of this module's.
        beats: grows with every movement.
        error: with which the block of `until_end` has ended, in one line; empty if there was none.
        shared: memory of at least `SIZE` bytes.
    """

    __slots__ = (
        *("_began", "_steps", "activity", "beats", "direction", "error", "iteration", "layer", "micro_batch", "part"),
        "shared",
    )

    def __init__(self, shared: Any = None) -> None:
        """Begin before the first iteration; without `shared` nobody else sees it."""
        self.shared = bytearray(SIZE) if shared is None else shared
        self.iteration = 0
        self.micro_batch = 0
        self.layer = 0
        self.part = ""
        self.direction = ""
        self.activity = START
        self.beats = 0
        self.error = ""
        self._began = 0.0
        self._steps: deque[float] = deque(maxlen=_KEPT)

    def enter(self, activity: str) -> str:
        """Begin an activity; return the one before, which `leave` takes."""
        before, self.activity = self.activity, activity
        self._moved()
        return before

    def leave(self, before: str) -> None:
        """Go back to the activity before."""
        self.activity = before
        self._moved()

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Mark a with-block as an activity."""
        before = self.enter(activity)
        try:
            yield
        finally:
            self.leave(before)

    @contextmanager
    def until_end(self) -> Iterator[None]:
        """Mark what follows a with-block as the end, also after an error."""
        try:
            yield
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}".splitlines()[0]
            raise
        finally:
            self.enter(END)

    @contextmanager
    def step(self, iteration: int) -> Iterator[None]:
        """Mark a with-block as the step of an iteration, and count its time."""
        self.iteration, self.micro_batch = iteration, 0
        self.between_micro_batches()
        self._began = time.monotonic()
        before = self.enter(STEP)
        try:
            yield
        finally:
            self.between_micro_batches()
            self.leave(before)
        self._steps.append(time.monotonic() - self._began)

    def forget_steps(self) -> None:
        """Begin to measure steps again, as at a start: the next one waits for new workers of the data."""
        self._steps.clear()

    def between_micro_batches(self) -> None:
        """Forget layer and direction."""
        self.layer, self.part, self.direction = 0, "", ""

    def move(self, layer: int, part: str, direction: str, micro_batch: int) -> None:
        """Be at a layer, or a part outside of the layers."""
        self.layer = layer
        self.part = part
        self.direction = direction
        self.micro_batch = micro_batch
        self._moved()

    def _moved(self) -> None:
        self.beats += 1
        words = _CODES.get(self.activity, 0), _CODES.get(self.part, 0), _CODES.get(self.direction, 0)
        _LAYOUT.pack_into(self.shared, 0, self.iteration, self.micro_batch, self.layer, *words)

    def median_step(self) -> float | None:
        """Return the median seconds of the latest steps; None before there are three."""
        steps = list(self._steps)
        return median(steps) if len(steps) >= 3 else None


def position_of(shared: bytes) -> Position:
    """Return the position that another process has written into the memory.

    Raises:
        struct.error: it is too short.
        IndexError: it holds something else.
    """
    position = Position()
    position.iteration, position.micro_batch, position.layer, *codes = _LAYOUT.unpack_from(shared)
    position.activity, position.part, position.direction = (_WORDS[code] for code in codes)
    return position
