"""Rendezvous of nodes that start their ranks again after a failure: node 0 decides, and who is there takes part.

Every attempt has keys of its own in the store of node 0, whose launcher outlives the ranks. A launcher that was killed
may be started again by the same command: it waits for the next attempt, as a node more than the run needs does.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import DistError

from pretrain.launch.nodes.arrivals import Arrival, in_order, with_one_place
from pretrain.launch.nodes.bounded_store import StoreSilenceError
from pretrain.launch.nodes.rendezvous import Rendezvous
from pretrain.launch.processes.failure import Failure
from pretrain.launch.restarts import node_failures
from pretrain.launch.restarts.restarts import Verdict
from pretrain.launch.restarts.signs import Signs, Watch
from pretrain.launch.restarts.terms import RunEnded, Terms
from pretrain.launch.world import free_port, node_worlds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.launch.world import World

_ATTEMPT, _END, _SPARES = "attempt", "end", "spares"
"""Keys of all attempts: the present one; why the run ends, if it is over; nodes that wait for the next attempt."""
_MEMBERS, _DONE, _VERDICT = "members", "done", "verdict"
"""Keys of one attempt: its nodes; begin of those of nodes whose ranks ended well; its failure, and what follows."""
_PERIOD = 0.2
_NOTICE_AFTER = 5.0
"""Seconds after which node 0 says for whom it waits at a restart."""
_ARRIVAL_TIMEOUT = timedelta(minutes=15)
_SHORT_TIMEOUT = 30.0
"""Seconds that nodes get to come back where the run may go on without them: the launchers of the others are there
already, and one that a batch system starts again needs some seconds to import torch."""
_SILENCE = 60.0
"""Seconds without a sign of a node's launcher, which gives one each second, after which the node is lost."""
_ARRIVAL_SILENCE = 3.0
"""The same before an attempt, in which a launcher that is gone must not take part."""
_SHORT_SILENCE = 4.0
"""The same where ranks have lost a rank, and no node has said why: they wait a little longer for such a word."""
_LOSS_AFTER = 30.0
"""Seconds that ranks get to end by themselves when node 0 is gone, and that it gets to answer again."""
_SPARES_TIMEOUT = 5.0
"""Seconds that waiting nodes get to read that the run is over."""


class RestartingRendezvous(Rendezvous):
    """Member of the rendezvous over several attempts."""

    def _take_place(self) -> None:
        self._attempt = -1
        self._place = 0 if self._serves else self._nodes.rank
        self._others: list[Arrival] = []
        self._lost: float | None = None
        self._spare = self._over = False
        self._launcher = secrets.token_hex(8)
        self._signs = Signs(self._store, self._launcher)
        self._watch = Watch(self._store)
        if self._serves:
            self._require_vacant(0)

    @property
    def serves(self) -> bool:
        """This is node 0."""
        return self._serves

    def meet(
        self, ranks: int, choose: Callable[[Sequence[Arrival], int], Sequence[Arrival]], fewest: int | None
    ) -> list[Arrival]:
        """Open the next attempt and wait for its nodes; node 0 alone calls it, and then `begin`.

        Args:
            ranks: of this node.
            choose: returns the nodes that take part, of those that are there and all that are wanted.
            fewest: nodes that are enough after a short wait; None: all.

        Raises:
            RunEnded: a node was asked to end, or nodes have not come.
            RecipeError: of `choose`.
        """
        self._enter(self._attempt + 1)
        self._store.set(_ATTEMPT, str(self._attempt))
        self._arrive(ranks)
        return list(choose(self._await_arrivals(fewest), self._nodes.count))

    def begin(self, members: Sequence[Arrival], terms: Terms) -> list[World]:
        """Let the attempt begin with these nodes; return the places of this node's ranks."""
        record = {"nodes": [asdict(node) for node in members], "port": free_port(), "terms": asdict(terms)}
        self._of_attempt.set(_MEMBERS, json.dumps(record))
        return self._placed(record)

    def join(self, ranks: int) -> tuple[list[World], Terms]:
        """Take part in the next attempt that takes this node; nodes other than node 0 call it.

        Returns:
            the places of this node's ranks, and what node 0 has decided.

        Raises:
            RunEnded: the run is over, or node 0 is gone.
        """
        try:
            return self._join(ranks)
        except DistError as error:
            raise RunEnded(self._loss(), of_loss=True) from error

    def _join(self, ranks: int) -> tuple[list[World], Terms]:
        wanted = self._attempt + 1
        while True:
            self._wait_until(lambda: self._opened() >= wanted)  # noqa: B023  called at once
            self._enter(self._opened())
            number = 0 if self._of_attempt.check([_MEMBERS]) else self._arrive(ranks)
            self._wait_until(lambda: self._of_attempt.check([_MEMBERS]))
            record = json.loads(self._of_attempt.get(_MEMBERS))
            place = next((at for at, node in enumerate(record["nodes"]) if node["number"] == number), None)
            if place is not None:
                self._place = place
                terms = record["terms"]
                return self._placed(record), Terms(**{**terms, "holder": tuple(terms["holder"])})
            self._wait_as_spare(len(record["nodes"]))
            wanted = self._attempt + 1

    def settle(self, failure: Failure | None, judge: Callable[[Failure], Verdict]) -> tuple[Failure | None, Verdict]:
        """Learn what follows from the end of this attempt; on node 0, decide it.

        Args:
            failure: of the run; None if the ranks here ended well.
            judge: decides on a failure.

        Returns:
            the failure as node 0 knows it, or its loss, which explains it; and what follows on all nodes.
        """
        if self._serves:
            with suppress(DistError):
                if failure is None:
                    failure = self._failure_of_others()
                elif failure.lost_peer:
                    failure = self._silent(_SHORT_SILENCE) or failure
            verdict = judge(failure) if failure else Verdict()
            with suppress(DistError):
                self._of_attempt.set(_VERDICT, json.dumps([failure and asdict(failure), asdict(verdict)]))
            return failure, verdict
        try:
            if failure is None:
                self._of_attempt.set(f"{_DONE}/{self._rank}", "")
            self._wait_until(lambda: self._of_attempt.check([_VERDICT]))
            cause, verdict = json.loads(self._of_attempt.get(_VERDICT))
            return Failure(**cause) if cause else failure, Verdict(**verdict)
        except DistError:
            ended = RunEnded(self._loss(), of_loss=True)
        except RunEnded as error:
            ended = error
        if failure is None and ended.of_loss:  # ranks that ended well have seen the end of the training
            return None, Verdict()
        return ended.failure or failure, Verdict()

    def _failure_of_others(self) -> Failure | None:
        """Wait until the ranks of all nodes have ended, as those here have; return the failure of some."""
        left = dict(enumerate(self._others, 1))
        while left:
            if failure := self._ended() or self._reported():
                return failure
            for rank, node in list(left.items()):
                if self._of_attempt.check([f"{_DONE}/{rank}"]) or self._watch.silence(node.launcher) > _SILENCE:
                    del left[rank]
            time.sleep(_PERIOD if left else 0)
        return None

    def back_off(self, seconds: float) -> None:
        """Wait before the next attempt, on node 0.

        Raises:
            RunEnded: a node was asked to end.
        """
        deadline = time.monotonic() + seconds
        self._wait_until(lambda: time.monotonic() >= deadline)

    def end(self, failure: Failure | None) -> None:
        """Say to all nodes that the run is over: why, or None if it ended well; the first word counts."""
        with suppress(DistError):
            self._store.compare_set(_END, "", json.dumps(failure and asdict(failure)))

    def asked_to_end(self, code: int) -> Failure:
        """Return the reason that other nodes show when a signal has ended this one; `code`: 128 + its number."""
        return node_failures.asked_to_end(self._place, code)

    def poll(self) -> Failure | None:
        """Return the failure that a node has reported, or the loss of one; None if there is none."""
        if self._over:  # node 0 need not stay until the last rank here has ended
            return None
        try:
            failure = self._ended() or self._reported() or (self._silent(_SILENCE) if self._serves else None)
        except DistError:
            self._lost = self._lost or time.monotonic()
            return self._loss() if time.monotonic() - self._lost > _LOSS_AFTER else None
        self._lost = None
        return failure

    def leave(self, exit_code: int = 0) -> None:
        """Leave; node 0 ends the run with that, if nothing else has, and waits for members and for spare nodes."""
        if self._serves:
            self.end(None)
        if self._spare:
            self._set_spare(spare=False)
        else:
            super().leave(exit_code)
        deadline = time.monotonic() + _SPARES_TIMEOUT
        with suppress(DistError):
            while self._serves and self._store.add(_SPARES, 0) > 0 and time.monotonic() < deadline:
                time.sleep(_PERIOD)
        self._signs.stop()

    def _enter(self, attempt: int) -> None:
        self._attempt, self._rank, self._crowded = attempt, -1, 0.0  # no node is there yet
        self._of_attempt = self._store.within(f"attempt {attempt}")

    def _opened(self) -> int:
        return int(self._store.get(_ATTEMPT)) if self._store.check([_ATTEMPT]) else -1

    def _arrive(self, ranks: int) -> int:
        number = self._of_attempt.add("arrived", 1)
        host = socket.gethostname()
        arrival = Arrival(number=number, place=self._place, ranks=ranks, host=host, launcher=self._launcher)
        self._of_attempt.set(f"arrival/{number}", json.dumps(asdict(arrival)))
        return number

    def _await_arrivals(self, fewest: int | None) -> list[Arrival]:
        began, count, said = time.monotonic(), self._nodes.count, False
        while True:
            there = self._arrivals()
            waited = time.monotonic() - began
            nodes = in_order(there, count)
            if len(nodes) >= count and not self._is_crowded(there):
                return nodes
            if self._attempt and fewest is not None and waited > _SHORT_TIMEOUT and len(nodes) >= fewest:
                return nodes
            if waited > _ARRIVAL_TIMEOUT.total_seconds():
                self._members = len(nodes)
                waited_for = self._nodes.rendezvous, len(nodes), count, _ARRIVAL_TIMEOUT
                raise RunEnded(node_failures.absence(*waited_for, at_restart=self._attempt > 0))
            if self._attempt and waited > _NOTICE_AFTER and not said:
                said = True
                sys.stderr.write(self._notice(len(nodes), fewest))
            if ended := self._ended():
                raise RunEnded(ended)
            time.sleep(_PERIOD)

    def _arrivals(self) -> list[Arrival]:
        """Return the nodes that have come, and whose launchers still give signs."""
        keys = [f"arrival/{number}" for number in range(1, self._of_attempt.add("arrived", 0) + 1)]
        came = [Arrival(**json.loads(self._of_attempt.get(key))) for key in keys if self._of_attempt.check([key])]
        return [node for node in came if self._watch.silence(node.launcher) < _ARRIVAL_SILENCE]

    def _is_crowded(self, nodes: Sequence[Arrival]) -> bool:
        """Say whether there are too many nodes, one of which may be gone.

        Raises:
            RunEnded: two that stay have the same --node-rank.
        """
        same = [] if self._attempt else with_one_place(nodes)
        if len(nodes) <= self._nodes.count and not same:
            return False
        self._crowded = self._crowded or time.monotonic()
        if time.monotonic() - self._crowded < 1.5 * _ARRIVAL_SILENCE:
            return True
        if same:
            raise RunEnded(node_failures.one_node_rank(self._nodes.rendezvous, same))
        return False

    def _placed(self, record: dict[str, Any]) -> list[World]:
        """Begin an attempt that takes this node; return the places of its ranks."""
        nodes = [Arrival(**node) for node in record["nodes"]]
        sizes = [node.ranks for node in nodes]
        place = self._place or 0
        self._rank, self._members = place, len(sizes)
        self._others = nodes[1:]  # node 0 judges
        if self._spare:
            self._set_spare(spare=False)
        return node_worlds(sizes, place, self._host, record["port"])

    def _wait_as_spare(self, members: int) -> None:
        self._place = self._nodes.rank
        if not self._spare:
            self._set_spare(spare=True)
        sys.stderr.write(
            f"--rdzv {self._nodes.rendezvous}: the run goes on with {members} nodes; "
            "this one takes part after the next restart.\n"
        )

    def _set_spare(self, *, spare: bool) -> None:
        self._spare = spare
        with suppress(DistError):
            self._store.add(_SPARES, 1 if spare else -1)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait.

        Raises:
            RunEnded: the run is over, or node 0 is gone.
        """
        answered = time.monotonic()
        while True:
            try:
                if condition():
                    return
                if self._store.check([_END]):
                    raise RunEnded(self._ended())
                answered = time.monotonic()
            except DistError as error:
                silent = isinstance(error, StoreSilenceError)
                if not silent or time.monotonic() - answered > _LOSS_AFTER:
                    raise RunEnded(self._loss(), of_loss=True) from error
            time.sleep(_PERIOD)

    def _ended(self) -> Failure | None:
        if not self._store.check([_END]):
            return None
        failure = json.loads(self._store.get(_END))
        self._over = failure is None
        return Failure(**failure) if failure else None

    def _silent(self, seconds: float) -> Failure | None:
        """Return the loss of a node whose launcher has given no sign for so long."""
        for place, node in enumerate(self._others, 1):
            silence = self._watch.silence(node.launcher)
            if silence > seconds:
                return node_failures.silence(place, node, silence)
        return None

    def _loss(self) -> Failure:
        return node_failures.loss_of_node_0(self._nodes.rendezvous)

    def _notice(self, there: int, fewest: int | None) -> str:
        seconds = _ARRIVAL_TIMEOUT.total_seconds() if fewest is None else _SHORT_TIMEOUT
        after = "ends" if fewest is None else f"goes on with {fewest} or more"
        return (
            f"restart: {there} of {self._nodes.count} nodes are there; the run {after} after {seconds:g} s. "
            "The same command on a node that is missing lets it come back.\n"
        )
