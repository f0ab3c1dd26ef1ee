"""Ways on from a statement: to the next one, out of a loop, a function, or the script."""

from __future__ import annotations

from typing import TypeAlias

from pretrain.tools.migrate.shell.values.merged_states import merged
from pretrain.tools.migrate.shell.values.state import State

Way: TypeAlias = tuple[str, int]
Flow: TypeAlias = dict[Way, State]
"""States by the way on which the shell goes on; several where a condition is not known."""

NEXT: Way = ("next", 0)
RETURN: Way = ("return", 0)
EXIT: Way = ("exit", 0)


def leads_on(state: State | None) -> Flow:
    """Return the flow to the next statement; an empty one for no state."""
    return {} if state is None else {NEXT: state}


def joined(first: Flow, second: Flow) -> Flow:
    """Return a flow that goes either way."""
    found = dict(first)
    for way, state in second.items():
        both = merged(found.get(way), state)
        if both is not None:
            found[way] = both
    return found


def end(flow: Flow, *ways: Way) -> State | None:
    """Take ways out of a flow, all if none are named, and return what holds at the end of them."""
    state = None
    for way in ways or tuple(flow):
        state = merged(state, flow.pop(way, None))
    return state
