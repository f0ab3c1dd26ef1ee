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
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


START, LOAD, STEP, FORWARD_BACKWARD, TASKS = "start", "load", "interval", "forward-backward", "tasks"
BETWEEN, LOG, GENERATE, REDUCTION, END = "between", "log", "generate", "gradient reduction", "end"
"""Activities beside the phases of `pretrain.report.timers`."""

FORWARD, BACKWARD = "forward", "backward"
EMBEDDING, OUTPUT = "embedding", "output layer"

_WORDS = (
    *("", START, LOAD, STEP, FORWARD_BACKWARD, BETWEEN, LOG, GENERATE, FORWARD, BACKWARD, EMBEDDING, OUTPUT),
    *("data", "optimizer", "evaluation", "save", TASKS, END),
)
_CODES = {word: code for code, word in enumerate(_WORDS)}
_LAYOUT = struct.Struct("<6i")
SIZE = _LAYOUT.size  # bytes of a position that other processes read

_KEPT = 20  # steps of which the median is taken


class TrainingPlace(NamedTuple):
    """A place in the training. Iteration, micro-batch and layer (over all stages) count from 1; 0 is none."""

    iteration: int = 0
    micro_batch: int = 0
    layer: int = 0
    part: str = ""  # `EMBEDDING` or `OUTPUT` outside of a layer
    direction: str = ""
    activity: str = START


@dataclass(slots=True, eq=False)
class Position:
    """The place in the training, written by the main thread and read by the one that watches it.

    A write is a few plain stores, since there is one for each layer of each micro-batch. `beats` grows with each, and
    each goes to `shared` too, `SIZE` bytes that other processes read, even when this one is dead.
    """

    shared: Any = field(default_factory=lambda: bytearray(SIZE), repr=False)
    iteration: int = 0
    micro_batch: int = 0
    layer: int = 0
    part: str = ""
    direction: str = ""
    activity: str = START
    beats: int = 0
    error: str = ""  # that ended the block of `until_end`
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT), repr=False)

    def place(self) -> TrainingPlace:
        """Return the place at this moment."""
        return TrainingPlace(self.iteration, self.micro_batch, self.layer, self.part, self.direction, self.activity)

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
    TASKS: "the evaluation on tasks",
    "save": "saving",
}
"""Activities of a position -> words that follow "it is in"."""


def place_words(place: TrainingPlace, layers: int = 0) -> str:
    """Return "layer 7 of 12, backward, iteration 812", or the activity outside of the model; 0 layers: not known."""
    iteration = f"iteration {place.iteration}" if place.iteration else ""
    return ", ".join(filter(None, (_spot(place, layers), iteration)))


def _spot(place: TrainingPlace, layers: int) -> str:
    words = _ACTIVITIES.get(place.activity, place.activity)
    if place.activity not in {FORWARD_BACKWARD, STEP, "evaluation", GENERATE}:
        return words
    of = f" of {layers}" if layers else ""
    where = f"layer {place.layer}{of}" if place.layer else place.part
    inner = ", ".join(filter(None, (where, place.direction)))
    if where and place.activity in {FORWARD_BACKWARD, STEP}:
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


def last_place(path: str | Path) -> TrainingPlace | None:
    """Return the last place of another process of this host; None if it cannot be read."""
    try:
        iteration, micro_batch, layer, *codes = _LAYOUT.unpack_from(Path(path).read_bytes())
        activity, part, direction = (_WORDS[code] for code in codes)
    except (OSError, struct.error, IndexError):
        return None
    return TrainingPlace(iteration, micro_batch, layer, part, direction, activity)
