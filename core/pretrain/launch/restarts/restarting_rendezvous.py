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
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch.distributed import DistError

from pretrain.launch.nodes.arrivals import Arrival
from pretrain.launch.nodes.rendezvous import LOSS_AFTER, Rendezvous
from pretrain.launch.nodes.store_keys import STOPPED
from pretrain.launch.processes.failure import Failure
from pretrain.launch.restarts import node_failures
from pretrain.launch.restarts.meeting import Meeting, arrive
from pretrain.launch.restarts.restarts import Verdict
from pretrain.launch.restarts.signs import Signs, Watch
from pretrain.launch.restarts.terms import NodesAbsent, RunEnded, Terms
from pretrain.launch.world import free_port, node_worlds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pretrain.launch.world import World

_ATTEMPT, _END, _SPARES = "attempt", "end", "spares"
"""Keys of all attempts: the present one; why the run ends, if it is over; nodes that wait for the next attempt."""
_MEMBERS, _DONE, _VERDICT = "members", "done", "verdict"
"""Keys of one attempt: its nodes; begin of those of nodes whose ranks ended well; its failure, and what follows."""
_PERIOD = 0.2
_SILENCE = 60.0
"""Seconds without a sign, of which a launcher gives one each second, after which its node is lost."""
_SHORT_SILENCE = 4.0
"""Seconds without a sign after which a node is the cause where ranks have lost a rank and no node has said why: they
wait a little longer for such a word."""
_ANSWER_TIMEOUT = 3.0
"""Seconds that nodes get to end their ranks, and to say why, when they have read of a consequence."""
_SPARES_TIMEOUT = 5.0
"""Seconds that waiting nodes get to read that the run is over."""


class RestartingRendezvous(Rendezvous):
    """Member of the rendezvous over several attempts."""

    def _take_place(self) -> None:
        self._attempt = -1
        self._place = 0 if self._serves else self._nodes.rank
        self._others: list[Arrival] = []
        self._spare = False
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
            NodesAbsent: nodes have not come.
            RunEnded: a node was asked to end, or two have one place.
            RecipeError: of `choose`.
        """
        with self._until_lost():
            self._enter(self._attempt + 1)
            self._store.set(_ATTEMPT, str(self._attempt))
            self._arrive(ranks)
            meeting = Meeting(self._attempt_store, self._attempt, self._nodes, self._watch, self._require_no_end)
            try:
                nodes = meeting.wait(fewest)
            except NodesAbsent as absent:
                self._members = absent.there
                raise
        return list(choose(nodes, self._nodes.count))

    def begin(self, members: Sequence[Arrival], terms: Terms) -> list[World]:
        """Let the attempt begin with these nodes; return the places of this node's ranks.

        Raises:
            RunEnded: this node's own store does not answer.
        """
        record = {"nodes": [asdict(node) for node in members], "port": free_port(), "terms": asdict(terms)}
        with self._until_lost():
            self._attempt_store.set(_MEMBERS, json.dumps(record))
        return self._placed(record)

    def join(self, ranks: int) -> tuple[list[World], Terms]:
        """Take part in the next attempt that takes this node; nodes other than node 0 call it.

        Returns:
            the places of this node's ranks, and what node 0 has decided.

        Raises:
            RunEnded: the run is over, or node 0 is gone.
        """
        with self._until_lost():
            return self._join(ranks)

    def _join(self, ranks: int) -> tuple[list[World], Terms]:
        wanted = self._attempt + 1
        while True:
            self._wait_until(lambda: self._opened() >= wanted)  # noqa: B023  called at once
            self._enter(self._opened())
            wanted = self._attempt + 1
            number = 0 if self._has_begun() else self._arrive(ranks)
            self._wait_until(lambda: self._has_begun() or self._opened() > self._attempt)
            if not self._has_begun():  # node 0 has waited for others in vain
                continue
            record = json.loads(self._attempt_store.get(_MEMBERS))
            place = next((at for at, node in enumerate(record["nodes"]) if node["number"] == number), None)
            if place is not None:
                self._place = place
                terms = record["terms"]
                return self._placed(record), Terms(**{**terms, "holder": tuple(terms["holder"])})
            self._wait_as_spare(len(record["nodes"]))

    def settle(self, failure: Failure | None, judge: Callable[[Failure], Verdict]) -> tuple[Failure | None, Verdict]:
        """Learn what follows from the end of this attempt; on node 0, decide it.

        Args:
            failure: of the run, or why the ranks here have stopped; None if they came to the end.
            judge: decides on a failure.

        Returns:
            the failure as node 0 knows it, and what follows on all nodes.

        Raises:
            RunEnded: node 0 is gone.
        """
        try:
            with self._until_lost():
                return self._decide(failure, judge) if self._serves else self._learn(failure)
        except RunEnded as ended:
            if ended.of_loss and not self._serves:
                if failure is None or failure.stopped:  # ranks that ended well, or have saved, have seen the end
                    return failure, Verdict()
                raise
            return ended.failure or failure, Verdict()

    def _decide(self, failure: Failure | None, judge: Callable[[Failure], Verdict]) -> tuple[Failure | None, Verdict]:
        if failure is None or failure.stopped:
            failure = self._failure_of_others() or self._failure_of(STOPPED)
        else:
            failure = self._explained(failure)
        verdict = judge(failure) if failure else Verdict()
        self._attempt_store.set(_VERDICT, json.dumps([failure and asdict(failure), asdict(verdict)]))
        return failure, verdict

    def _explained(self, failure: Failure) -> Failure:
        """Return the cause of a failure that is only a consequence, where it is known or soon becomes so."""
        deadline = time.monotonic() + _ANSWER_TIMEOUT
        while failure.lost_peer:
            failure = self._silent(_SHORT_SILENCE) or self._reported() or failure
            if time.monotonic() > deadline:
                break
            time.sleep(_PERIOD)
        return failure

    def _learn(self, failure: Failure | None) -> tuple[Failure | None, Verdict]:
        if failure is None or failure.stopped:
            self._attempt_store.set(f"{_DONE}/{self._rank}", "")
        self._wait_until(lambda: self._attempt_store.check([_VERDICT]))
        cause, verdict = json.loads(self._attempt_store.get(_VERDICT))
        return Failure(**cause) if cause else failure, Verdict(**verdict)

    def _failure_of_others(self) -> Failure | None:
        """Wait until the ranks of all nodes have ended, as those here have; return the failure of some.

        A launcher that is lost by then costs nothing: the training is over, and a warning is enough.
        """
        left = dict(enumerate(self._others, 1))
        while left:
            if failure := self._ended() or self._reported():
                return failure
            for rank, node in list(left.items()):
                silence = self._watch.silence(node.launcher)
                if self._attempt_store.check([f"{_DONE}/{rank}"]):
                    del left[rank]
                elif silence > _SILENCE:
                    del left[rank]
                    sys.stderr.write(f"warning: {node_failures.silence(rank, node, silence)}\n")
            time.sleep(_PERIOD if left else 0)
        return None

    def back_off(self, seconds: float) -> None:
        """Wait before the next attempt, on node 0.

        Raises:
            RunEnded: a node was asked to end.
        """
        deadline = time.monotonic() + seconds
        with self._until_lost():
            self._wait_until(lambda: time.monotonic() >= deadline)

    def end(self, failure: Failure | None) -> None:
        """Say to all nodes that the run is over: why, or None if it is complete; the first word counts.

        A node that takes no part has no say; and that it is complete, or has stopped, only node 0 knows.
        """
        if self._spare or ((failure is None or failure.stopped) and not self._serves):
            return
        with suppress(DistError):
            self._store.compare_set(_END, "", json.dumps(failure and asdict(failure)))

    def asked_to_end(self, code: int) -> Failure:
        """Return the reason that other nodes show when a signal has ended this one; `code`: 128 + its number."""
        return node_failures.asked_to_end(self._place, code)

    def _hear(self) -> Failure | None:
        failure = self._ended()
        if self._over:  # others may still end their ranks, or fail to; node 0 has what it needs
            return None
        return failure or self._reported() or (self._silent(_SILENCE) if self._serves else None)

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
        self._attempt, self._rank = attempt, -1  # it has no place yet
        self._attempt_store = self._store.within(f"attempt {attempt}")

    def _opened(self) -> int:
        return int(self._store.get(_ATTEMPT)) if self._store.check([_ATTEMPT]) else -1

    def _has_begun(self) -> bool:
        return self._attempt_store.check([_MEMBERS])

    def _arrive(self, ranks: int) -> int:
        host = socket.gethostname()
        return arrive(self._attempt_store, place=self._place, ranks=ranks, host=host, launcher=self._launcher)

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
            f"--rdzv {self._nodes.rendezvous}: the run goes on with {members} node{'s' * (members > 1)}; "
            "this one takes part after the next restart.\n"
        )

    def _set_spare(self, *, spare: bool) -> None:
        self._spare = spare
        with suppress(DistError):
            self._store.add(_SPARES, 1 if spare else -1)

    @contextmanager
    def _until_lost(self) -> Iterator[None]:
        """Take node 0 for lost in a block that has nothing else to do: at once if the connection breaks.

        Where its store is silent only, as a host that stands still makes it, it gets a while to answer again.

        Raises:
            RunEnded: node 0 is gone.
        """
        try:
            with self._store.patient(LOSS_AFTER):
                yield
        except DistError as error:
            raise RunEnded(self._loss(), of_loss=True) from error

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait.

        Raises:
            RunEnded: the run is over.
            DistError: node 0 is gone.
        """
        while not condition():
            self._require_no_end()
            time.sleep(_PERIOD)

    def _require_no_end(self) -> None:
        if self._store.check([_END]):
            raise RunEnded(self._ended())

    def _ended(self) -> Failure | None:
        if not self._store.check([_END]):
            return None
        said = json.loads(self._store.get(_END))
        failure = Failure(**said) if said else None
        self._over = failure is None or failure.stopped
        return failure

    def _silent(self, seconds: float) -> Failure | None:
        """Return the loss of a node whose launcher has given no sign for so long."""
        for place, node in enumerate(self._others, 1):
            silence = self._watch.silence(node.launcher)
            if silence > seconds:
                return node_failures.silence(place, node, silence)
        return None

    def _loss(self) -> Failure:
        return node_failures.loss_of_node_0(self._nodes.rendezvous)
