"""The place in the training where a rank's main thread is; other processes can read it."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

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
SIZE = _LAYOUT.size  # bytes of a position that other processes read

_KEPT = 20  # steps of which the median is taken


@dataclass(slots=True, eq=False)
class Position:
    """The place in the training, written by the main thread and read by the one that watches it.

    A write is a few plain stores, since there is one for each layer of each micro-batch. Iteration, micro-batch and
    layer (over all stages) count from 1; 0 is none. `beats` grows with every movement. Each write goes to `shared` too,
    `SIZE` bytes that other processes read, even when this one is dead. `error` ended the block of `until_end`.
    """

    shared: Any = field(default_factory=lambda: bytearray(SIZE), repr=False)
    iteration: int = 0
    micro_batch: int = 0
    layer: int = 0
    part: str = ""  # `EMBEDDING` or `OUTPUT` outside of a layer
    direction: str = ""
    activity: str = START
    beats: int = 0
    error: str = ""
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT), repr=False)

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
        began = time.monotonic()
        before = self.enter(STEP)
        try:
            yield
        finally:
            self.between_micro_batches()
            self.leave(before)
        self._steps.append(time.monotonic() - began)

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


_ACTIVITIES = {
    START: "starting",
    LOAD: "loading a checkpoint",
    BETWEEN: "between two steps",
    STEP: "its step",
    FORWARD_BACKWARD: "its step",
    LOG: "logging",
    GENERATE: "generation",
    REDUCTION: "gradient reduction",
    END: "the end of the training",
    "data": "data loading",
    "optimizer": "the optimizer",
    "evaluation": "the evaluation",
    "save": "saving",
}
"""Activities of a position -> words that follow "it is in"."""


class Placed(Protocol):
    """A place in the training: a position, or a rank's state."""

    @property
    def iteration(self) -> int: ...  # noqa: D102  see `pretrain.report.hang.position.Position`
    @property
    def layer(self) -> int: ...  # noqa: D102
    @property
    def part(self) -> str: ...  # noqa: D102
    @property
    def direction(self) -> str: ...  # noqa: D102
    @property
    def activity(self) -> str: ...  # noqa: D102


def place_of(placed: Placed, layers: int) -> str:
    """Return "layer 7 of 12, backward, iteration 812", or the activity outside of the model; 0 layers: not known."""
    iteration = f"iteration {placed.iteration}" if placed.iteration else ""
    return ", ".join(filter(None, (_spot(placed, layers), iteration)))


def _spot(placed: Placed, layers: int) -> str:
    words = _ACTIVITIES.get(placed.activity, placed.activity)
    if placed.activity not in {FORWARD_BACKWARD, STEP, "evaluation", GENERATE}:
        return words
    of = f" of {layers}" if layers else ""
    where = f"layer {placed.layer}{of}" if placed.layer else placed.part
    inner = ", ".join(filter(None, (where, placed.direction)))
    if where and placed.activity in {FORWARD_BACKWARD, STEP}:
        return inner
    return ", ".join(filter(None, (words, inner)))


@contextmanager
def shared_memory(file: Path | None) -> Iterator[tuple[Any, str]]:
    """Open memory for a position; yield it, and the path at which this host's processes read it, "" on a full disk.

    `file` is made for it and stays, for those who look for a process that has ended; without, it ends with the block.
    """
    with ExitStack() as opened:
        memory: Any = bytearray(SIZE)
        path = ""
        with suppress(OSError, AttributeError):  # AttributeError: a system without such memory
            if file is not None:
                descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
            else:
                descriptor = os.memfd_create("pretrain place")
            opened.callback(os.close, descriptor)
            os.posix_fallocate(descriptor, 0, SIZE)  # a hole in a full file system would kill the process by SIGBUS
            memory = mmap.mmap(descriptor, SIZE)
            path = str(file or f"/proc/{os.getpid()}/fd/{descriptor}")
        yield memory, path


def read_position(path: str | Path) -> Position | None:
    """Return the last position of another process of this host; None if it cannot be read."""
    position = Position()
    try:
        position.iteration, position.micro_batch, position.layer, *codes = _LAYOUT.unpack_from(Path(path).read_bytes())
        position.activity, position.part, position.direction = (_WORDS[code] for code in codes)
    except (OSError, struct.error, IndexError):
        return None
    return position


def last_place(path: str | Path, layers: int = 0) -> str:
    """Return the last place of another process as text, of a model with so many layers; "" if it cannot be read."""
    position = read_position(path)
    return place_of(position, layers) if position is not None else ""
