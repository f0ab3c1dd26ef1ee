"""Loops: round by round while their conditions are known, and else as any number of rounds at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.shell.flow import NEXT, end, joined, leads_on
from pretrain.tools.migrate.shell.statements import Shell, inverted
from pretrain.tools.migrate.shell.values.state import Cell

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.tools.migrate.shell.flow import Flow
    from pretrain.tools.migrate.shell.spans import Text
    from pretrain.tools.migrate.shell.syntax.tree import CountedFor, For, While
    from pretrain.tools.migrate.shell.values.state import State

_MOST_ROUNDS = 100


class Loops(Shell):
    """Follows loops."""

    def for_each(self, node: For, state: State) -> Flow:
        """Follow `for NAME in ...`."""
        if node.words is None:
            rest = state.arguments.rest
            texts = None if rest else list(state.arguments.known)
        else:
            fields = self.expansion(state).fields(node.words)
            texts = [field.text for field in fields] if all(field.is_one for field in fields) else None
        if texts is None:

            def unknown_value(inner: State) -> Flow:
                inner.put(node.name, Cell(None, why=f"it takes its values from the loop at {node.place}"))
                inner.status = None
                return {NEXT: inner}

            return self._settled(unknown_value, lambda inner: self.run(node.body, inner), state)
        state.status = state.status if texts else 0
        return self._each(node, texts, state)

    def _each(self, node: For, texts: list[Text], state: State) -> Flow:
        done: Flow = {}
        current: State | None = state
        for text in texts:
            self.budget.spend(node.place)
            if current is None:
                break
            current.put(node.name, Cell({0: text.named(node.name)}))
            current, left = _after_body(self.run(node.body, current))
            done = joined(done, left)
        return joined(done, leads_on(current))

    def counted(self, node: CountedFor, state: State) -> Flow:
        """Follow `for ((...))`."""
        if node.start:
            self.calculated(node.start, state)

        before: list[int | None] = [state.status]  # the expressions do not change $?

        def head(inner: State) -> Flow:
            before[0] = inner.status
            inner.status = self.calculated(node.condition, inner) if node.condition else 0
            return {NEXT: inner}

        def body(inner: State) -> Flow:
            inner.status = before[0]
            current, flow = _after_body(self.run(node.body, inner), keep_breaks=True)
            if current is not None and node.step:
                self.calculated(node.step, current)
            return joined(flow, leads_on(current))

        return self._loop(head, body, state)

    def while_holds(self, node: While, state: State) -> Flow:
        """Follow `while` and `until`."""

        def head(inner: State) -> Flow:
            flow = self.untested(node.condition, inner)
            if NEXT in flow and node.until:
                flow[NEXT].status = inverted(flow[NEXT].status)
            return flow

        return self._loop(head, lambda inner: self.run(node.body, inner), state)

    def _loop(self, head: Callable[[State], Flow], body: Callable[[State], Flow], state: State) -> Flow:
        """Follow a loop round by round while its condition is known, and then all other rounds at once."""
        done: Flow = {}
        last: int | None = 0
        current: State | None = state
        while current is not None:
            self.budget.spend_round()
            before, count = current.copy(), len(self.commands)
            flow = head(current)
            after = flow.pop(NEXT, None)
            done = joined(done, flow)
            if after is None:
                break
            if after.status is None:
                del self.commands[count:]
                return joined(done, self._settled(head, body, before))
            if after.status:
                after.status = last
                return joined(done, {NEXT: after})
            current, left = _after_body(body(after))
            done, last = joined(done, left), current.status if current else None
            if current is not None and current.same(before):  # it changes nothing, so that it would never end
                break
        return done

    def _settled(self, head: Callable[[State], Flow], body: Callable[[State], Flow], state: State) -> Flow:
        """Follow a loop of an unknown number of rounds: what a round changes is unknown, until nothing else changes."""
        start, count = state, len(self.commands)
        for _ in range(_MOST_ROUNDS):
            del self.commands[count:]
            self.budget.spend_round()
            done = head(start.copy())
            after = done.pop(NEXT, None)
            again = None
            if after is not None:
                if after.status != 0:
                    stopped = after.copy()
                    stopped.status = None
                    done = joined(done, {NEXT: stopped})
                again, left = _after_body(body(after)) if after.status in {0, None} else (None, {})
                done = joined(done, left)
            both = end({("a", 0): start.copy(), ("b", 0): again}) if again else start
            if both is None or both.same(start):
                return done
            start = both
        self.budget.exhaust()
        return {}


def _after_body(flow: Flow, *, keep_breaks: bool = False) -> tuple[State | None, Flow]:
    """Return the state in which a loop goes on after its body, and the flow out of the loop."""
    current = end(flow, NEXT, ("continue", 1))
    if keep_breaks:
        return current, flow
    left: Flow = {}
    for (kind, level), state in flow.items():
        if (kind, level) == ("break", 1):
            left = joined(left, {NEXT: state})
        else:
            left = joined(left, {(kind, level - (kind in {"break", "continue"})): state})
    return current, left
