"""A rank's state in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.report.hang.place_words import place_of

if TYPE_CHECKING:
    from pretrain.report.hang.rank_state import RankState
    from pretrain.report.hang.stacks import Frame

_FOREIGN = ("torch/", "threading.py", "queue.py", "contextlib.py", "megatron/", "numpy/", "selectors.py", "deepspeed/")
"""Beginnings of files that say less than their callers'."""


def place(state: RankState) -> str:
    """Return the place of a state, as `place_of`."""
    return place_of(state, state.layers)


def doing(state: RankState) -> str:
    """Return what a rank does that waits in no collective: its place, its error and the line of code."""
    ended = f"after its own error, {state.error}" if state.error else ""
    return "; ".join(filter(None, (place(state), ended, str(telling_frame(state) or ""))))


def telling_frame(state: RankState) -> Frame | None:
    """Return the innermost call of the main thread that is no library's; the innermost of all where there is none."""
    own = (frame for frame in state.frames if not frame.file.startswith(_FOREIGN))
    return next(own, state.frames[0] if state.frames else None)
