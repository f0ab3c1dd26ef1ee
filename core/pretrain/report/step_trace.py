"""Where the time of profiled steps goes: reads a trace of torch.profiler with the names of `trace_ranges`."""

from __future__ import annotations

import bisect
import heapq
import itertools
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

DATA, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, REST = (
    "data",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "rest",
)
PHASES = (DATA, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, REST)
"""Phases in the order in which they are shown. COMMUNICATION is the exposed one; REST lies in no other phase."""
IDLE = "device idle"

_STEP = re.compile(r"step \d+")
_LAYER = re.compile(r"layer \d+/?")
_FOREIGN = re.compile(r"#|:\S")  # ranges of torch's own: Optimizer.step#Adam.step, nccl:all_reduce
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_ON_HOST = re.compile(r"cpu_op|user_annotation|.*_(runtime|driver)")
_NODE = "autograd::engine::evaluate_function: "
_PHASE_OF_RANGE = {
    "data": DATA,
    "forward-backward": REST,
    "forward": FORWARD,
    "optimizer": OPTIMIZER,
}


class Owner(NamedTuple):
    """What a moment of a step belongs to."""

    phase: str
    part: str  # such as "mlp.linear_fc1: reference (pretrain)", without its layer


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """The mean of some steps on one rank."""

    seconds: float
    parts: Mapping[Owner, float]  # owner -> seconds; their sum is `seconds`
    launches: float  # kernels that the device ran; without one, operators that the host called
    communication: float  # seconds in which a collective ran, exposed or not
    on_device: bool  # False: the seconds are those of the host's main thread


@dataclass(slots=True, eq=False)
class _Event:
    name: str
    category: str
    thread: Any
    begin: float
    end: float
    correlation: Any
    parent: _Event | None = None
    children: list[_Event] = field(default_factory=list)
    forward: _Event | None = None  # the operator whose gradient this one computes
    owner: Owner | None = None

    @property
    def is_node(self) -> bool:
        return self.name.startswith(_NODE)

    @property
    def computes(self) -> bool:
        """True for an operator in native code; Python's functions and autograd's nodes may wait for others."""
        name = self.name
        return self.category == "cpu_op" and "::" in name and not name.startswith("c10d::") and "autograd::" not in name


def step_times(trace: Mapping[str, Any], library: str) -> StepTimes:
    """Return the times of the steps in a trace, the content of its file.

    On a device, a moment belongs to the computing kernel that began first, else to exposed communication, else it is
    idle. Without one, a moment of the host's main thread belongs to its innermost range; it is exposed communication
    where a collective runs while no operator computes. `library` names the process groups' ("nccl", "gloo").

    Raises:
        ValueError: the trace has no range of a step.
    """
    events = [_event(each) for each in trace["traceEvents"] if each.get("ph") == "X" and "dur" in each]
    host = [event for event in events if _ON_HOST.fullmatch(event.category)]
    steps = [event for event in host if event.category == "user_annotation" and _STEP.fullmatch(event.name)]
    if not steps:
        msg = "the trace has no range of a step"
        raise ValueError(msg)
    _nest(host)
    _link(host, trace["traceEvents"])
    device = [event for event in events if event.category in _ON_DEVICE]
    windows = sorted((step.begin, step.end) for step in steps)
    if device:
        _adopt(device, host)
        spans, launches = _device_spans(device, windows, library), _launched(device, windows)
    else:
        spans = _host_spans(steps, _collectives(host, windows, library))
        launches = sum(_is_call(event) for event in _within(host, windows))
    parts: dict[Owner, float] = defaultdict(float)
    for owner, microseconds in spans:
        parts[owner] += microseconds / 1e6 / len(steps)
    talking = [event for event in device or host if _talks(event, library)]
    return StepTimes(
        seconds=sum(end - begin for begin, end in windows) / 1e6 / len(steps),
        parts=parts,
        launches=launches / len(steps),
        communication=sum(e - b for b, e in _union(_within(talking, windows))) / 1e6 / len(steps),
        on_device=bool(device),
    )


def _event(given: Mapping[str, Any]) -> _Event:
    arguments = given.get("args", {})
    return _Event(
        str(given.get("name", "")),
        str(given.get("cat", "")),
        given.get("tid"),
        given["ts"],
        given["ts"] + given["dur"],
        arguments.get("correlation"),
    )


def _nest(events: Iterable[_Event]) -> None:
    """Give each event of a thread the innermost one around it as its parent."""
    around: dict[Any, list[_Event]] = defaultdict(list)
    for event in sorted(events, key=lambda each: (each.begin, -each.end)):
        stack = around[event.thread]
        while stack and stack[-1].end <= event.begin:
            stack.pop()
        if stack:
            event.parent = stack[-1]
            event.end = min(event.end, event.parent.end)
            stack[-1].children.append(event)
        stack.append(event)


def _link(host: Iterable[_Event], raw: Iterable[Mapping[str, Any]]) -> None:
    """Link each operator of the backward pass with its operator of the forward pass."""
    at = {(event.thread, event.begin): event for event in host}
    flows = [each for each in raw if each.get("cat") == "fwdbwd"]
    begun = {flow["id"]: at.get((flow["tid"], flow["ts"])) for flow in flows if flow["ph"] == "s"}
    for flow in flows:
        event = at.get((flow["tid"], flow["ts"]))
        if flow["ph"] == "f" and event is not None:
            event.forward = begun.get(flow["id"])


def _owner(event: _Event | None) -> Owner:
    if event is None:
        return Owner(REST, REST)
    if event.owner is None:
        event.owner = _find_owner(event, _owner(event.parent))
    return event.owner


def _find_owner(event: _Event, around: Owner) -> Owner:
    name = event.name
    if event.is_node:
        return Owner(BACKWARD, _part_of_node(event))
    if name.startswith("c10d::") or name == "record_param_comms":
        return Owner(COMMUNICATION, name.removeprefix("c10d::").rstrip("_"))
    if event.category != "user_annotation" or _FOREIGN.search(name):
        return around
    head = name.partition(":")[0]
    if _STEP.fullmatch(name):
        return Owner(REST, REST)
    if head in _PHASE_OF_RANGE:
        phase = BACKWARD if around.phase == BACKWARD else _PHASE_OF_RANGE[head]
        return Owner(phase, name)
    part = _LAYER.sub("", name, count=1) if _LAYER.match(name) else name
    return Owner(around.phase, part or "layer")


def _part_of_node(node: _Event) -> str:
    forward = next((child.forward for child in node.children if child.forward), node.forward)
    return node.name.removeprefix(_NODE).rpartition("::")[2] if forward is None else _owner(forward).part


def _host_spans(steps: Iterable[_Event], collectives: Sequence[_Event]) -> Iterator[tuple[Owner, float]]:
    """Yield who owns each piece of the steps, as the main thread goes through them, and its microseconds."""
    waits = _union(collectives)
    for step in steps:
        for begin, end, event, owner in _innermost(step):
            exposed = 0.0
            if not event.computes and owner.phase != COMMUNICATION:
                for name, overlap in _overlaps(begin, end, waits, collectives):
                    exposed += overlap
                    yield Owner(COMMUNICATION, name), overlap
            yield owner, end - begin - exposed


def _innermost(top: _Event) -> Iterator[tuple[float, float, _Event, Owner]]:
    """Yield the pieces in which an event has no other one inside, and those of its children."""
    pending = [top]
    while pending:
        event = pending.pop()
        at, before = event.begin, None
        for child in event.children:
            if child.begin > at:
                # Between two nodes of autograd its engine works, in the phase of neither's range.
                is_engine = before is not None and before.is_node and child.is_node
                yield at, child.begin, event, Owner(BACKWARD, "autograd") if is_engine else _owner(event)
            at, before = max(at, child.end), child
        if event.end > at:
            yield at, event.end, event, _owner(event)
        pending += event.children


def _collectives(host: Iterable[_Event], windows: Sequence[tuple[float, float]], library: str) -> list[_Event]:
    """Return the collectives that began in a step, by time; those between steps agree on a stop beside them."""
    found = (event for event in host if event.name.startswith(f"{library}:"))
    return sorted((e for e in found if any(b <= e.begin < end for b, end in windows)), key=lambda event: event.begin)


def _overlaps(
    begin: float, end: float, waits: Sequence[tuple[float, float]], collectives: Sequence[_Event]
) -> Iterator[tuple[str, float]]:
    """Yield the overlaps of a piece with the times in which collectives run, and the name of one that does."""
    index = max(0, bisect.bisect_right(waits, (begin, float("inf"))) - 1)
    for from_, to in waits[index:]:
        if from_ >= end:
            return
        overlap = min(end, to) - max(begin, from_)
        if overlap > 0:
            first = bisect.bisect_left(collectives, from_, key=lambda event: event.begin)
            yield collectives[first].name.partition(":")[2], overlap


def _union(events: Iterable[_Event]) -> list[tuple[float, float]]:
    """Return the times in which any of the events runs."""
    joined: list[tuple[float, float]] = []
    for event in sorted(events, key=lambda each: each.begin):
        if joined and event.begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], event.end)
        else:
            joined.append((event.begin, event.end))
    return joined


def _adopt(device: Iterable[_Event], host: Iterable[_Event]) -> None:
    """Give what a device ran the call that launched it as its parent."""
    calls = {event.correlation: event for event in host if event.correlation is not None}
    for event in device:
        event.parent = calls.get(event.correlation)


def _talks(event: _Event, library: str) -> bool:
    return event.name.casefold().startswith(library) or COMMUNICATION in {
        _owner(event).phase,
        _owner(event.parent).phase,
    }


def _device_spans(
    device: Iterable[_Event], windows: Sequence[tuple[float, float]], library: str
) -> Iterator[tuple[Owner, float]]:
    """Yield who owns each piece of the steps on the device, and its microseconds."""
    ordered = sorted(device, key=lambda event: event.begin)
    edges = sorted(
        {at for event in ordered for at in (event.begin, event.end)} | {at for each in windows for at in each}
    )
    computing: list[tuple[float, int, _Event]] = []
    talking: list[tuple[float, int, _Event]] = []
    following = 0
    for begin, end in itertools.pairwise(edges):
        while following < len(ordered) and ordered[following].begin <= begin:
            event = ordered[following]
            heapq.heappush(talking if _talks(event, library) else computing, (event.begin, following, event))
            following += 1
        for running in (computing, talking):
            while running and running[0][2].end <= begin:
                heapq.heappop(running)
        if not any(first <= begin < last for first, last in windows):
            continue
        if computing:
            owner = _owner(computing[0][2].parent)
        elif talking:
            owner = Owner(COMMUNICATION, talking[0][2].name.partition("(")[0])
        else:
            owner = Owner(REST, IDLE)
        yield owner, end - begin


def _launched(device: Iterable[_Event], windows: Sequence[tuple[float, float]]) -> int:
    return sum(event.category == "kernel" for event in _within(device, windows))


def _within(events: Iterable[_Event], windows: Sequence[tuple[float, float]]) -> list[_Event]:
    return [event for event in events if any(begin <= event.begin < end for begin, end in windows)]


def _is_call(event: _Event) -> bool:
    """Say whether an operator is called by Python or autograd, and not by another operator."""
    return event.computes and not (event.parent is not None and event.parent.computes)
