"""Statements in the order in which bash would execute them; where a condition is not known, both ways are followed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.shell import conditions
from pretrain.tools.migrate.shell.flow import EXIT, NEXT, end, joined
from pretrain.tools.migrate.shell.spans import Text, shortened, unknown
from pretrain.tools.migrate.shell.syntax.tree import (
    Background,
    Calculation,
    Case,
    Chain,
    CountedFor,
    For,
    Function,
    Group,
    If,
    Pipeline,
    Redirected,
    Simple,
    Test,
    While,
)
from pretrain.tools.migrate.shell.values.arithmetic import UnresolvedError
from pretrain.tools.migrate.shell.values.expansion import Expansion
from pretrain.tools.migrate.shell.values.merged_states import depends_on
from pretrain.tools.migrate.shell.values.state import NONZERO

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.tools.migrate.shell.flow import Flow
    from pretrain.tools.migrate.shell.script import Command
    from pretrain.tools.migrate.shell.syntax.tree import (
        Arithmetic,
        Node,
        Statements,
        Substitution,
    )
    from pretrain.tools.migrate.shell.values.state import Budget, State


class Shell:
    """Follows statements; commands and redirections are in a class of their own."""

    def __init__(self, budget: Budget) -> None:
        """Prepare it."""
        self.budget = budget
        self.commands: list[Command] = []
        self.notices: list[str] = []
        self.last_substitution: int | None = 0
        self._exempt = 0
        self._of: dict[type, Callable[..., Flow]] = {
            Simple: self.simple, Redirected: self.redirected, Function: self._function, Chain: self._chain,
            Pipeline: self._pipeline, Group: self._group, If: self._if, Case: self._case, For: self.for_each,
            CountedFor: self.counted, While: self.while_holds, Test: self._test, Calculation: self._calculation,
            Background: self._background,
        }  # fmt: skip

    def simple(self, node: Simple, state: State) -> Flow:
        """Follow a simple command."""
        raise NotImplementedError

    def redirected(self, node: Redirected, state: State) -> Flow:
        """Follow a statement with redirections."""
        raise NotImplementedError

    def for_each(self, node: For, state: State) -> Flow:
        """Follow `for NAME in ...`."""
        raise NotImplementedError

    def counted(self, node: CountedFor, state: State) -> Flow:
        """Follow `for ((...))`."""
        raise NotImplementedError

    def while_holds(self, node: While, state: State) -> Flow:
        """Follow `while` and `until`."""
        raise NotImplementedError

    def expansion(self, state: State) -> Expansion:
        """Return what expands words in a state."""
        return Expansion(state, self._substituted)

    def run(self, statements: Statements, state: State) -> Flow:
        """Follow statements from a state, which is changed."""
        flow: Flow = {NEXT: state}
        for statement in statements:
            before = flow.pop(NEXT, None)
            if before is None:
                break
            flow = joined(flow, self.step(statement, before))
        return flow

    def step(self, node: Node, state: State) -> Flow:
        """Follow one statement; with `set -e`, one that failed ends the script."""
        self.budget.spend(node.place)
        flow = self._of[type(node)](node, state)
        if isinstance(node, If | Case | Chain | For | While | CountedFor):
            for way in flow.values():
                depends_on(way, node.written, node.place)
        after = flow.get(NEXT)
        strict = after.options.get("errexit", False) if after else False
        if after is None or self._exempt or strict is False or after.status == 0 or not _may_end(node):
            return flow
        failed = after if strict and after.status is not None else after.copy()
        ended: Flow = {EXIT: failed}
        if failed is not after:
            after.status = 0 if strict else after.status
            failed.status = NONZERO if failed.status is None else failed.status
            ended[NEXT] = after
        return joined({way: state for way, state in flow.items() if way != NEXT}, ended)

    def untested(self, statements: Statements | Node, state: State) -> Flow:
        """Follow statements whose failure ends nothing."""
        self._exempt += 1
        try:
            return self.run(statements, state) if isinstance(statements, tuple) else self.step(statements, state)
        finally:
            self._exempt -= 1

    def own_shell(self, statements: Statements, state: State, place: object) -> Flow:
        """Follow statements in a shell of their own, which changes nothing of this one but files."""
        child = state.copy()
        ended = self.ended(self.run(statements, child), place)
        state.files, state.output, state.status = ended.files, ended.output, ended.status
        return {NEXT: state}

    @staticmethod
    def ended(flow: Flow, place: object) -> State:
        """Return what holds after a shell ended, or a function."""
        if any(way[0] in {"break", "continue"} for way in flow):
            msg = f"{place}: a break or continue stands outside of its loop.\nLoops within one function are read."
            msg += "\nMove it into the loop."
            raise MigrateError(msg)
        state = end(flow)
        if state is None:
            msg = (
                f"{place}: a loop does not end.\nLoops that end are read.\nName a script that only starts the training."
            )
            raise MigrateError(msg)
        return state

    def _substituted(self, node: Substitution, state: State) -> Text:
        """Return the output of $(...), as far as echo and the like give it."""
        self.budget.spend(node.place)
        child = state.copy()
        child.output = Text()
        self._exempt += 1
        ended = self.ended(self.run(node.body, child), node.place)
        self._exempt -= 1
        state.files, state.status, self.last_substitution = ended.files, ended.status, ended.status
        if ended.output is None:
            shown = shortened(node.written)
            return unknown(shown, node.place, shown)
        self.budget.spend(node.place, characters=len(ended.output.text))
        return ended.output.without_last_newlines()

    def _function(self, node: Function, state: State) -> Flow:
        state.functions[node.name] = node
        state.status = 0
        return {NEXT: state}

    def _chain(self, node: Chain, state: State) -> Flow:
        flow = self.untested(node.first, state)
        for number, (operator, other) in enumerate(node.others, 1):
            before = flow.pop(NEXT, None)
            if before is None:
                break
            is_last = number == len(node.others)
            follow = self.step if is_last else self.untested
            flow = joined(flow, self._either_way(before, operator == "&&", partial(follow, other)))
        return flow

    def _either_way(self, state: State, if_well: bool, then: Callable[[State], Flow]) -> Flow:
        """Go on where the last status is as wanted; on both ways where it is unknown."""
        if state.status is not None:
            return then(state) if (state.status == 0) == if_well else {NEXT: state}
        skipped = state.copy()
        state.status, skipped.status = (0, NONZERO) if if_well else (NONZERO, 0)
        return joined({NEXT: skipped}, then(state))

    def _pipeline(self, node: Pipeline, state: State) -> Flow:
        statuses = []
        if len(node.elements) == 1:
            flow = self.untested(node.elements[0], state) if node.negated else self.step(node.elements[0], state)
            if NEXT in flow:
                flow[NEXT].status = inverted(flow[NEXT].status) if node.negated else flow[NEXT].status
            return flow
        piped, output = state.input, state.output
        for element in node.elements:
            child = state.copy()
            child.input, child.output = piped, Text()
            ended = self.ended(self.run((element,), child), node.place)
            state.files, piped = ended.files, ended.output
            statuses.append(ended.status)
        state.output = output + piped if output is not None and piped is not None else None
        state.status = _of_pipeline(statuses, strict=state.options.get("pipefail", False))
        if node.negated:
            state.status = inverted(state.status)
        return {NEXT: state}

    def _group(self, node: Group, state: State) -> Flow:
        return self.own_shell(node.body, state, node.place) if node.is_subshell else self.run(node.body, state)

    def _background(self, node: Background, state: State) -> Flow:
        flow = self.own_shell((node.body,), state, node.place)
        flow[NEXT].status, flow[NEXT].output = 0, None
        return flow

    def _if(self, node: If, state: State, first: int = 0) -> Flow:
        if first == len(node.branches):
            state.status = 0
            return {NEXT: state}
        condition, body = node.branches[first]
        if condition is None:
            return self.run(body, state)
        flow = self.untested(condition, state)
        after = flow.pop(NEXT, None)
        if after is None:
            return flow
        if after.status is None:
            other = after.copy()
            after.status, other.status = 0, NONZERO
            ways = joined(self.run(body, after), self._if(node, other, first + 1))
        else:
            ways = self.run(body, after) if after.status == 0 else self._if(node, after, first + 1)
        return joined(flow, ways)

    def _case(self, node: Case, state: State) -> Flow:
        text = self.expansion(state).single(node.word.parts)
        return self._choices(node, text, 0, state)

    def _choices(self, node: Case, text: Text, first: int, state: State) -> Flow:
        for number in range(first, len(node.choices)):
            self.budget.spend(node.place)
            found = conditions.choice(text, node.choices[number].patterns, self.expansion(state))
            if found:
                return self._chosen(node, text, number, state)
            if found is None:
                chosen = self._chosen(node, text, number, state.copy())
                return joined(chosen, self._choices(node, text, number + 1, state))
        state.status = 0
        return {NEXT: state}

    def _chosen(self, node: Case, text: Text, number: int, state: State) -> Flow:
        choice = node.choices[number]
        state.status = state.status if choice.body else 0
        flow = self.run(choice.body, state)
        after = flow.pop(NEXT, None)
        if after is None:
            return flow
        if choice.ending == ";&" and number + 1 < len(node.choices):
            return joined(flow, self._chosen(node, text, number + 1, after))
        if choice.ending == ";;&":
            return joined(flow, self._choices(node, text, number + 1, after))
        return joined(flow, {NEXT: after})

    def _test(self, node: Test, state: State) -> Flow:
        state.status = _status_of(conditions.holds(node, self.expansion(state)))
        return {NEXT: state}

    def _calculation(self, node: Calculation, state: State) -> Flow:
        state.status = self.calculated(node.value, state)
        return {NEXT: state}

    def calculated(self, value: Arithmetic, state: State) -> int | None:
        """Return the status of ((...))."""
        expansion = self.expansion(state)
        try:
            number = expansion.parameters.number(expansion.single(value.inside, is_quoted=True), value.place)
        except UnresolvedError:
            return None
        return int(number == 0)


def _may_end(node: Node) -> bool:
    """Say whether `set -e` looks at the status of a statement of this form."""
    if isinstance(node, Redirected):
        return _may_end(node.body)
    if isinstance(node, Group):
        return node.is_subshell
    return isinstance(node, Simple | Test | Calculation) or (isinstance(node, Pipeline) and not node.negated)


def inverted(status: int | None) -> int | None:
    """Return the status of `!`."""
    return None if status is None else int(status == 0)


def _status_of(value: bool | None) -> int | None:
    return None if value is None else int(not value)


def _of_pipeline(statuses: list[int | None], *, strict: bool | None) -> int | None:
    if strict is False:
        return statuses[-1]
    if strict is None or None in statuses:
        return None
    return next((status for status in reversed(statuses) if status), 0)
