"""Rendezvous of nodes that start their own ranks: a store in which they meet, report and decide.

Node 0 serves it and leads; or it is served elsewhere, and any node can lead. A run has one attempt, and more with
--max-restarts. A killed launcher may be started again by the same command: it waits for the next attempt, as a node
more than the run needs does.
"""

from __future__ import annotations

import json
import math
import secrets
import signal
import socket
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import DistError

from pretrain.errors import LaunchError
from pretrain.exit_codes import of_signal
from pretrain.launch.nodes import attempt as attempts
from pretrain.launch.nodes import joining
from pretrain.launch.nodes.attempt import Attempt, Known, RunEnded
from pretrain.launch.nodes.blame import Blame
from pretrain.launch.nodes.heartbeats import Heartbeat, HeartbeatWatch
from pretrain.launch.nodes.leader import END, Leader, LeaderChanged
from pretrain.launch.nodes.reports import SharedRequests, lost_node_0, waiting_spare, who_trains
from pretrain.launch.processes.failure import Failure
from pretrain.launch.restarts import NO_RESTARTS, Decision
from pretrain.machine import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pretrain.launch.nodes.attempt import Arrival, AttemptPlan
    from pretrain.launch.nodes.nodes import Nodes
    from pretrain.launch.restarts import RestartPolicy
    from pretrain.launch.world import NodePart, World

_ATTEMPT, _SPARES = "attempt", "spares"
"""Keys: the present attempt; nodes that wait for the next attempt."""

_LAUNCHER_TIMEOUT = timedelta(minutes=1)
_PERIOD = 0.2
_CAUSE_TIMEOUT = 5.0  # seconds that a node whose ranks only lost a peer waits for the failure of that peer's node
_READ_TIMEOUT = 10.0
LOSS_AFTER = 30.0  # seconds that ranks get to end by themselves when node 0 is gone, and that it gets to answer again
_LEAVE_TIMEOUT = 30.0  # seconds that node 0 waits for the others when it has finished
_SPARES_TIMEOUT = 5.0  # seconds that waiting nodes get to read that the run is over


class Rendezvous:
    """One node as a member of the rendezvous, which it joins, waiting for the node that serves the store."""

    def __init__(self, nodes: Nodes, policy: RestartPolicy = NO_RESTARTS, *, trains: bool = True) -> None:
        self._nodes, self._trains = nodes, trains
        self._restarts = policy.limit > 0
        self._fewest = policy.fewest_nodes
        self._store, self._serves, self._address = joining.join_store(nodes, policy, LOSS_AFTER)
        # Node rank in the present attempt, or the one it wants; None: any.
        self.place = 0 if self._serves else nodes.rank
        self.asked_to_stop = False  # the ranks here have been asked to save and end
        self._members = nodes.count if nodes.of_hostfile else 1
        self._spare = self._over = self._arrived = self._is_member = False
        self._lost: float | None = None
        self._blame = Blame()
        self._launcher = secrets.token_hex(8)
        self._watch = HeartbeatWatch(self._store)
        self._attempt = Attempt(self._store, 0, self._watch)
        self._next = 0  # number of the attempt that opens next; what fails before the first belongs to that
        try:
            with self._store.patient(LOSS_AFTER):  # a thousand nodes may join at once
                self._heartbeat = Heartbeat(self._store, self._launcher)
                self._leader = Leader(
                    self._store, self._watch, self._launcher, serves=self._serves, external=nodes.external
                )
                self.requests = SharedRequests(self._store)
        except DistError as error:
            raise joining.failed(nodes, error) from error

    @property
    def leads(self) -> bool:
        """True if this node opens attempts and judges failures."""
        return self._leader.is_here

    def wait_for_launcher(self) -> None:
        """Wait for the launcher of the hostfile; LaunchError: it has ended, or cannot reach the rendezvous."""
        msg = (
            f"--hostfile: the launcher did not join the rendezvous {self._nodes.rendezvous} within "
            f"{_LAUNCHER_TIMEOUT.seconds} s: it has ended, or cannot reach it.\n"
            "Set MASTER_ADDR (and MASTER_PORT) to an address of the first host that the launcher and all hosts reach."
        )
        try:
            with self._store.patient(LOSS_AFTER):
                deadline = time.monotonic() + _LAUNCHER_TIMEOUT.total_seconds()
                self._wait_until(lambda: self._store.check([joining.LAUNCHER]), deadline, msg)
        except DistError as error:
            raise LaunchError(msg) from error

    def require_own_machine(self) -> None:
        """Check that no other node of the hostfile is on this machine: both would take its devices from 0 on."""
        place = self.place or 0
        other = int(self._store.compare_set(f"machine/{machine()} {socket.gethostname()}", "", str(place)))
        if other != place:
            first, second = sorted([other + 1, place + 1])
            msg = (
                f"hosts {first} and {second} of the hostfile are one machine, {socket.gethostname()}: "
                "their ranks would share its devices.\nGive it one line with all its ranks."
            )
            raise LaunchError(msg)

    def meet(self, ranks: int, choose: Callable[[Sequence[Arrival], int], Sequence[Arrival]]) -> Sequence[Arrival]:
        """Open the next attempt and wait for its nodes; the node that leads alone calls it, and then `begin`."""
        # `choose` returns the nodes that take part, of those that are there and all that are wanted.
        with self._until_lost():
            self._next = max(self._next, self._opened() + 1)
            before = Known(before=tuple(self._members_before()), left_out=tuple(self._blame.left_out))
            attempt = self._enter(self._next)
            self._arrive(ranks)
            self._store.set(_ATTEMPT, str(attempt.number))
            try:
                nodes = attempt.gather(self._nodes, self._fewest, self._require_no_end, before)
            finally:
                if not self._nodes.of_hostfile:  # of whom each joins, and its launcher waits for that
                    self._members = attempt.there
        chosen = choose(nodes, self._nodes.count)
        own = attempt.own()
        return chosen if own in chosen else [*chosen[:-1], own]  # the node that leads takes part

    def begin(self, members: Sequence[Arrival], plan: AttemptPlan | None = None) -> list[World]:
        """Let the attempt begin with these nodes; return the places of this node's ranks."""
        with self._until_lost():
            self._require_no_end()  # the preparation may have taken so long that another node leads
            part = self._attempt.begin(members, plan, self._blame.left_out)
            if self._nodes.spares:
                waiting = self._attempt.waiting(members)
                sys.stderr.write(who_trains(self._nodes, [node.host for node in members], waiting))
            return self._placed(part)

    def _members_before(self) -> list[Arrival]:
        """Return the nodes of the last attempt that has begun."""
        for number in range(self._opened(), -1, -1):
            attempt = self._attempt if number == self._attempt.number else Attempt(self._store, number, self._watch)
            if attempt.has_begun():
                return attempt.members()
        return []

    def join(self, ranks: int, waits: Callable[[], object] = lambda: None) -> tuple[list[World], AttemptPlan | None]:
        """Take part in the next attempt that takes this node, which does not lead; return its places and the plan."""
        with self._until_lost():
            while (part := self._joined(ranks)) is None:
                if self._spare:
                    waits()
            return self._placed(part), self._attempt.plan()

    def _joined(self, ranks: int) -> NodePart | None:
        """Wait for an attempt to begin; return the part of it that this node has, if it takes part."""
        # With restarts node 0 prepares the run before the attempt begins: there is no limit for that.
        limit = attempts.ARRIVAL_TIMEOUT + timedelta(seconds=LOSS_AFTER)  # node 0, which can count them, says it before
        deadline = math.inf if self._restarts else time.monotonic() + limit.total_seconds()
        late = f"--rdzv {self._nodes.rendezvous}: not all {self._nodes.count} nodes have joined within {limit}."
        self._wait_until(lambda: self._opened() >= self._next, deadline, late)
        attempt = self._enter(self._opened())
        self._arrive(ranks)  # late, too: the node that leads then knows of a spare
        self._wait_until(lambda: attempt.has_begun() or self._opened() > attempt.number, deadline, late)
        if not attempt.has_begun():  # node 0 has waited for others in vain
            return None
        part = attempt.part(self._launcher)
        if part is None:
            self._wait_as_spare()
        return part

    def _arrive(self, ranks: int) -> None:
        number = self._attempt.arrive(self.place, ranks, self._launcher, self._address)
        self._arrived = True
        if number > self._nodes.count:  # one too many, unless another is gone
            self._set_spare(spare=True)

    def report(self, failure: Failure) -> Failure:
        """Report why this node's ranks have failed or stopped; return the failure of the run, or the stop."""
        if failure.stopped:
            with suppress(DistError):
                self._attempt.reports.keep_stop(failure)
            return failure
        # Ranks that only lost a peer wait a moment for the report of that peer's node.
        deadline = time.monotonic() + _CAUSE_TIMEOUT
        while failure.lost_peer and time.monotonic() < deadline:
            reported = self.poll()
            if reported and not reported.lost_peer:
                return reported
            with suppress(DistError):
                if told := self._attempt.reports.told():
                    failure = replace(told, asked=failure.asked)
                    break
            time.sleep(0.1)
        with suppress(DistError):
            return self._attempt.reports.keep(failure)
        return failure

    def tell(self, failures: Sequence[Failure]) -> None:
        """Let all nodes know what ranks here have told that still write a checkpoint; it ends nothing yet."""
        with suppress(DistError):
            self._attempt.reports.tell(failures)

    def launcher_has_read(self) -> bool:
        """Wait until the launcher of the hostfile has read the failure; return False if it does not: it has ended."""
        deadline = time.monotonic() + _READ_TIMEOUT
        with suppress(DistError):
            while not (is_read := self._store.check([joining.READ])) and time.monotonic() < deadline:
                time.sleep(_PERIOD)
            return is_read
        return False

    def poll(self) -> Failure | None:
        """Return the failure that a node has reported, or the loss of one; None if there is none."""
        # A stop request of the hostfile's launcher becomes that signal here, or SystemExit for an end at once.
        try:
            failure = self._failure_elsewhere()
        except DistError:
            self._lost = self._lost or time.monotonic()
            is_lost = time.monotonic() - self._lost > LOSS_AFTER and not self._over
            ends = self._restarts or self._nodes.of_hostfile  # else the loss of its ranks is reason enough
            return lost_node_0(self._nodes, trains=self._trains) if is_lost and ends else None
        self._lost = None
        return failure

    def _failure_elsewhere(self) -> Failure | None:
        """Return what ends the ranks here; raises DistError where node 0 has left or is silent."""
        self._leader.follow(self._may_lead)
        self._pass_on_stop()
        failure = self._ended()
        if self._over:  # others may still end their ranks, or fail to; with restarts node 0 has what it needs
            return None if self._restarts else self._attempt.reports.failure()
        failure = failure or self._attempt.reports.failure()
        if failure is None and self.leads and self._restarts:
            return self._attempt.lost_node(attempts.SILENCE)
        return failure

    def settle(self, failure: Failure | None, judge: Callable[[Failure], Decision]) -> tuple[Failure | None, Decision]:
        """Return the failure as the node that leads knows it, and what follows, which that decides by `judge`."""
        try:
            with self._until_lost():
                if failure is None or failure.stopped:
                    self._attempt.set_done(self.place or 0)
                while not self._attempt.is_decided():  # a node may lead from the moment when another has decided
                    if self.leads:
                        return self._attempt.decide(failure, judge, self._ended)
                    with suppress(LeaderChanged):
                        self._wait_until(self._attempt.is_decided)
                cause, verdict = self._attempt.decided()
                return cause or failure, verdict
        except RunEnded as ended:
            if ended.of_loss and not self._serves:
                if failure is None or failure.stopped:  # ranks that ended well, or have saved, have seen the end
                    return failure, Decision()
                raise
            return ended.failure or failure, Decision()

    def blame(self, failure: Failure) -> tuple[str, bool]:
        """Count a failure against its node; returns as `Blame.count`."""
        if not self._attempt.has_begun():
            return "", False
        members = self._attempt.members()
        can_replace = self._attempt.spares(self._blame.left_out) > 0
        can_replace = can_replace or (self._fewest is not None and self._fewest < len(members))
        kept = self._launcher if self._serves else ""
        return self._blame.count(failure, members, can_replace=can_replace, kept=kept)

    def keep(self, state: dict[str, Any]) -> None:
        """Keep what another node has to know if it is to lead, as it does from now on if this one is left out."""
        with self._until_lost():
            self._leader.keep({**state, "blame": self._blame.state()})
            if self._launcher in self._blame.left_out:
                others = [node.launcher for node in self._attempt.members()]
                self._leader.hand_to(next((one for one in others if one not in self._blame.left_out), self._launcher))

    def kept(self) -> dict[str, Any]:
        """Return what the node that led before has kept, {} if it has not or there was none."""
        with self._until_lost():
            known = self._leader.kept()
        self._blame = Blame(**known.get("blame", {}))
        return known

    def back_off(self, seconds: float) -> None:
        """Wait before the next attempt, on node 0."""
        deadline = time.monotonic() + seconds
        with self._until_lost():
            self._wait_until(lambda: time.monotonic() >= deadline)

    def end(self, failure: Failure | None) -> None:
        """Say to all nodes that the run is over: why, or None if it is complete; the first word counts."""
        # A node that takes no part has no say; and that it is complete, or has stopped, only node 0 knows.
        if (self._spare or failure is None or failure.stopped) and not self.leads:
            return
        with suppress(DistError):
            self._store.compare_set(END, "", json.dumps(failure and asdict(failure)))

    def leave(self, exit_code: int = 0) -> None:
        """Leave, with the exit code for the launcher of a hostfile."""
        # Node 0 ends the run with that, if nothing else has, and waits until all others have read the reports.
        if self._serves:
            self.end(None)
        with suppress(DistError):
            if self._spare:
                self._set_spare(spare=False)
            elif self._serves or self._arrived or self._nodes.of_hostfile:  # node 0 waits for it
                self._store.set(joining.ended_key(self.place or 0), str(exit_code))
                self._store.add(joining.GONE, 1)
            awaited = self._members + self._nodes.of_hostfile
            self._wait_for(lambda: self._store.add(joining.GONE, 0) >= awaited, _LEAVE_TIMEOUT)
            self._wait_for(lambda: self._store.add(_SPARES, 0) <= 0, _SPARES_TIMEOUT)
        self._heartbeat.stop()

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._serves and not condition() and time.monotonic() < deadline:
            time.sleep(_PERIOD / 2)

    def _enter(self, number: int) -> Attempt:
        self._attempt, self._next, self._is_member = Attempt(self._store, number, self._watch), number + 1, False
        return self._attempt

    def _opened(self) -> int:
        return int(self._store.get(_ATTEMPT)) if self._store.check([_ATTEMPT]) else -1

    def _placed(self, part: NodePart) -> list[World]:
        """Take part in an attempt that has begun with this node; return the places of its ranks."""
        self.place, self._is_member = part.node, True
        self._members = self._attempt.size()
        self._set_spare(spare=False)
        return self._attempt.worlds(part, self._nodes.endpoint()[0])

    def _wait_as_spare(self) -> None:
        """Wait for the next attempt; raises LaunchError in a run without restarts, which has none."""
        members, is_left_out = self._attempt.size(), self._attempt.leaves_out(self._launcher)
        self.place = self._nodes.rank
        self._set_spare(spare=True)
        if not self._restarts:
            raise LaunchError(joining.too_many_nodes(self._nodes, f"all {members} nodes have"))
        sys.stderr.write(waiting_spare(self._nodes, members, is_left_out=is_left_out))

    def _may_lead(self) -> bool:
        """Say whether this node may lead: it is in the attempt that runs, or none does."""
        opened = Attempt(self._store, max(0, self._opened()), self._watch)
        return self._is_member or not opened.has_begun() or opened.is_decided()

    def _set_spare(self, *, spare: bool) -> None:
        if spare != self._spare:
            self._spare = spare
            with suppress(DistError):
                self._store.add(_SPARES, 1 if spare else -1)

    @contextmanager
    def _until_lost(self) -> Iterator[None]:
        """Raise RunEnded in a block where node 0 is lost: its connection breaks, or it is silent for a while."""
        try:
            with self._store.patient(LOSS_AFTER):
                yield
        except DistError as error:
            raise RunEnded(lost_node_0(self._nodes, trains=self._trains), of_loss=True) from error

    def _wait_until(self, condition: Callable[[], bool], deadline: float = math.inf, late: str = "") -> None:
        """Wait; raises RunEnded if the run is over, and LaunchError with the message `late` after the deadline."""
        while not condition():
            self._require_no_end()
            if time.monotonic() > deadline:
                raise LaunchError(late)
            time.sleep(_PERIOD)

    def _require_no_end(self) -> None:
        self._pass_on_stop()
        if self._leader.follow(self._may_lead):
            raise LeaderChanged
        if self._store.check([END]):
            raise RunEnded(self._ended())

    def _ended(self) -> Failure | None:
        if not self._store.check([END]):
            return None
        said = json.loads(self._store.get(END))
        failure = Failure(**said) if said else None
        self._over = failure is None or failure.stopped
        return failure

    def _pass_on_stop(self) -> None:
        """Make a stop request of the hostfile's launcher that signal in this process, and the second one its end."""
        if not self._nodes.of_hostfile or not self._store.check([joining.STOP]):
            return
        number, times = json.loads(self._store.get(joining.STOP))
        if times > 1:
            raise SystemExit(of_signal(number))
        if not self.asked_to_stop:  # a scheduler's signal may have come here too
            self.asked_to_stop = True
            signal.raise_signal(number)
