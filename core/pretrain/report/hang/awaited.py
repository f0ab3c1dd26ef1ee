"""The collective that a rank's main thread waits in, by its stack and what the communication library knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pretrain.plugins.collective_record import BESIDE, NO_PEER, CalledCollective

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.report.hang.stacks import Frame

PIPELINE = "PIPELINE_MODEL_PARALLEL_GROUP"
"""megatron-core's description of the group whose neighbours are the stages before and after."""

_WRITING = "checkpoint/writing/agreement.py"
_DISTRIBUTED = "torch/distributed/"
_LIBRARIES = ("torch/", "megatron/")
_MESSAGES, _SCHEDULES = "pipeline_parallel/p2p_communication.py", "pipeline_parallel/schedules.py"
_WAITS = ("wait(", "synchronize(", ".item()", ".tolist()", ".cpu()", ".to(", "run_backward(")
"""What a line of Python holds that waits for a device, or for a collective that was called before. While the backward
pass runs in autograd's own thread that thread's stack counts (`stacks`), if Python runs in it."""


def awaited(
    frames: Sequence[Frame],
    called: Sequence[CalledCollective],
    rank: int,
    groups: Mapping[str, tuple[int, ...]],
    *,
    seconds: float,
    since: float,
) -> CalledCollective | None:
    """Return what the main thread waits in; None where it does something else.

    Args:
        frames: of the main thread, the innermost first.
        called: what the communication library knows, oldest first.
        rank: of this process.
        groups: members of this rank's process groups, by description.
        seconds: since the main thread has last moved.
        since: when that was, in seconds since the epoch: by the clock of `called`, at that moment. A clock that is set
            afterwards changes nothing.
    """
    if not frames:
        return None
    writes = any(
        frame.file.endswith(_WRITING) for frame in frames
    )  # a checkpoint's thread, that the main one waits for
    pending = [each for each in called if each.pending and (each.group == BESIDE) == writes]
    operation = _stage_message(frames)
    if operation:
        recorded = [each for each in pending if each.is_message]
        return _message(operation, recorded, rank, groups.get(PIPELINE, ()), since)
    if frames[0].file.startswith(_DISTRIBUTED):
        return _named(pending[-1], frames[0]) if pending else None  # called last, and waited for at once
    if pending and any(word in frames[0].source for word in _WAITS):
        return pending[0]
    return _of_full_queue(pending, seconds, since)


def _of_full_queue(pending: Sequence[CalledCollective], seconds: float, since: float) -> CalledCollective | None:
    """Return the collective that a device waits in whose queue is full: the main thread may stand at any line then.

    It was called before the main thread came to a stop. While that moves, a device is behind it at all times.
    """
    oldest = next((each for each in pending if each.library not in {"gloo", ""}), None)
    if oldest is None or seconds < _QUIET or oldest.called > since + _QUIET:
        return None
    return oldest


_QUIET = 2.0
"""Seconds."""


def _message(
    operation: str, recorded: Sequence[CalledCollective], rank: int, stages: tuple[int, ...], since: float
) -> CalledCollective | None:
    """Return the message that was recorded last, of which some libraries do not know the other rank."""
    if not recorded:
        return _unrecorded(operation, rank, stages, since)
    latest = recorded[-1]
    if latest.peer != NO_PEER:
        return latest
    told = _unrecorded(operation, rank, stages, since)
    return latest if told is None else replace(told, shapes=latest.shapes, dtype=latest.dtype, called=latest.called)


def _named(collective: CalledCollective, frame: Frame) -> CalledCollective:
    return collective if collective.operation else replace(collective, operation=frame.function)


def _stage_message(frames: Sequence[Frame]) -> str:
    """Return the message between pipeline stages that the main thread waits for, as megatron-core calls it."""
    if not frames[0].file.startswith(_LIBRARIES):
        return ""
    if any(frame.file.endswith(_MESSAGES) for frame in frames):
        return next((frame.function for frame in frames if frame.function in _PEERS), "")
    if frames[0].file.endswith(_SCHEDULES) and "wait(" in frames[0].source:
        return next((name for name in _HANDLES if name in frames[0].source), "")
    return ""


def _unrecorded(operation: str, rank: int, stages: tuple[int, ...], since: float) -> CalledCollective | None:
    """Return a message that gloo, which records none, is busy with; a rank comes to it right after a movement."""
    if rank not in stages:
        return None
    place = stages.index(rank) + (_PEERS | _HANDLES)[operation]
    return replace(_MESSAGE, operation=operation, ranks=stages, peer=stages[place % len(stages)], called=since)


_MESSAGE = CalledCollective(
    operation="", library="", group=PIPELINE, ranks=(), number=0, is_message=True, pending=True, called=0.0
)
_PEERS = {
    "recv_forward": -1,
    "send_backward": -1,
    "send_backward_recv_forward": -1,
    "recv_backward": 1,
    "send_forward": 1,
    "send_forward_recv_backward": 1,
    # The interleaved schedule sends to one side and takes from the other: it waits for what it takes.
    "send_forward_recv_forward": -1,
    "send_backward_recv_backward": 1,
    "send_forward_backward_recv_forward_backward": -1,
}
"""megatron-core's calls between stages -> the stage that is waited for, by its distance."""
_HANDLES = {"recv_prev": -1, "send_prev": -1, "recv_next": 1, "send_next": 1}
"""Names of what its interleaved schedule waits for later -> the same."""
